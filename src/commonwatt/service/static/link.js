// Keeps the stream open across failures of the server and the network.

import { messages } from "./api.js";
import { state } from "./state.js";

const LONGEST_WAIT_MS = 15000;

// Calls take(message) for each message, lost(seconds, error) before each new try, and refused(error) when the token is
// not accepted. Returns a function that closes the stream.
export function link({ take, lost, refused }) {
  let ended = false;
  let tries = 0;
  let controller;
  let nudge = () => {};

  async function once() {
    controller = new AbortController();
    let watchdog;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => controller.abort(), 3000 * (state.who?.heartbeat_s ?? 10));
    };
    alive();
    try {
      for await (const message of messages({ signal: controller.signal, alive, last: state.lastEvent })) {
        tries = 0;
        take(message);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  async function forever() {
    while (!ended) {
      let cause = null;
      try {
        await once();
      } catch (error) {
        cause = error;
      }
      if (ended) return;
      if (cause?.status === 401 || cause?.status === 403) return refused(cause);
      const wait_ms = Math.min(LONGEST_WAIT_MS, 1000 * 2 ** tries++);
      lost(wait_ms / 1000, cause);
      await new Promise((wake) => {
        nudge = wake;
        setTimeout(wake, wait_ms);
      });
    }
  }

  const again = () => nudge();
  window.addEventListener("online", again);
  forever();
  return () => {
    ended = true;
    controller?.abort();
    window.removeEventListener("online", again);
  };
}
