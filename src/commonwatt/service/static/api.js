// The REST API and its stream. The token stays in this tab (sessionStorage) and travels in a header only.

const KEY = "commonwatt-token";
const TENANT = "commonwatt-tenant";
const SIGNED_IN = "commonwatt-signed-in"; // the token is of a sign-in at the provider, and renewed
const SENDABLE = /^[!-~]+$/; // characters that a browser can send in a header
export const token = {
  good: (value) => SENDABLE.test(value ?? ""),
  get: () => (token.good(sessionStorage.getItem(KEY)) ? sessionStorage.getItem(KEY) : null),
  set: (value) => sessionStorage.setItem(KEY, value),
  drop: () => [KEY, TENANT, SIGNED_IN].forEach((key) => sessionStorage.removeItem(key)),
  renewed: () => sessionStorage.getItem(SIGNED_IN) !== null,
  tenant: (name) => sessionStorage.setItem(TENANT, name),
};

// Where people sign in (issuer, null: nowhere), and the token of whoever has (null: nobody).
export async function session() {
  const answer = await fetch("/sign-in/token", { method: "POST", cache: "no-store", credentials: "same-origin", redirect: "error" });
  if (!answer.ok) throw new Refused(answer.status, {});
  return answer.json();
}

// Takes the token of the person who has signed in. Returns in how many seconds to ask again, or null: nobody has.
export async function renew() {
  const { token: value, expires_s } = await session();
  if (value === null) return null;
  token.set(value);
  sessionStorage.setItem(SIGNED_IN, "yes");
  const left_s = expires_s - Date.now() / 1000;
  return Math.min(3600, Math.max(2, left_s - Math.min(55, left_s / 2))); // a little later than the server would renew it
}

export async function leave() {
  if (token.renewed()) await fetch("/sign-in/out", { method: "POST", credentials: "same-origin", redirect: "error" });
}

// A refusal of the server; `problem` is its application/problem+json.
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

async function request(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers, Authorization: `Bearer ${token.get() ?? ""}` };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (sessionStorage.getItem(TENANT)) sent["Commonwatt-Tenant"] = sessionStorage.getItem(TENANT);
  const answer = await fetch(`/api/v1${path}`, {
    method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body), signal,
    cache: "no-store", credentials: "omit", redirect: "error",
  });
  if (answer.ok) return answer;
  let problem = {};
  try {
    problem = await answer.json();
  } catch {
    problem = {};
  }
  throw new Refused(answer.status, problem ?? {});
}

export async function ask(path, options) {
  const answer = await request(path, options);
  const text = await answer.text();
  return (answer.headers.get("Content-Type") ?? "").includes("json") ? JSON.parse(text) : text;
}

// Messages of /stream as { name, data, id }. EventSource cannot send a token, so the body is read as it comes.
// `alive` is called with everything that arrives, heartbeats too.
export async function* messages({ signal, alive, last }) {
  const headers = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = String(last);
  const answer = await request("/stream", { headers, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = []; // parts of an incomplete message; the first board is megabytes long
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    held.push(value.replace(/\r/g, ""));
    if (!held.at(-1).includes("\n")) continue;
    const blocks = held.join("").split("\n\n");
    held = [blocks.pop()];
    for (const block of blocks) {
      const message = parse(block);
      if (message !== null) yield message;
    }
  }
}

export function parse(block) {
  let name = "message";
  let id = null;
  const data = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment: the heartbeat
    const field = line.slice(0, colon);
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    else if (field === "id") id = value;
    else if (field === "data") data.push(value);
  }
  return data.length ? { name, id, data: JSON.parse(data.join("\n")) } : null;
}

// A key that makes a submission safe to send again. (randomUUID would need HTTPS.)
export function freshKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
