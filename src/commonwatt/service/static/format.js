// Numbers as text. Unknown (null) is a dash, never 0.

export const DASH = "\u2013";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function number(value, digits = 0) {
  return known(value) ? value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: 0 }) : DASH;
}

// Three significant digits with the unit's prefix: 12.3 kW.
export function si(value, unit) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  for (const [factor, prefix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= factor * 0.9995) return `${Number((value / factor).toPrecision(3)).toLocaleString("en")}\u00a0${prefix}${unit}`;
  }
  return `${Number(value.toPrecision(3)).toLocaleString("en")}\u00a0${unit}`;
}

export const energy = (joules) => si(known(joules) ? joules / 3600 : null, "Wh");
export const gpuTime = (seconds) => (known(seconds) ? `${number(seconds / 3600, seconds < 36000 ? 2 : 0)}\u00a0GPU\u00a0h` : DASH);
export const percent = (share) => (known(share) ? `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%` : DASH);

export function money(value, currency) {
  if (!known(value)) return DASH;
  const digits = Math.abs(value) < 1 ? 4 : Math.abs(value) < 1000 ? 2 : 0;
  return `${number(value, digits)}${currency ? `\u00a0${currency}` : ""}`;
}

export function duration(seconds) {
  if (!known(seconds)) return DASH;
  const s = Math.abs(seconds);
  if (s < 1) return "0 s";
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Number((s / 3600).toPrecision(3))} h`;
  return `${Number((s / 86400).toPrecision(3))} days`;
}

const sameDay = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const otherDay = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

// The moment in the reader's own time zone, with the date unless it is today.
export function moment(seconds, now_s) {
  if (!known(seconds)) return DASH;
  const at = new Date(seconds * 1000);
  if (Number.isNaN(at.getTime())) return DASH;
  const today = at.toDateString() === new Date(now_s * 1000).toDateString();
  return (today ? sameDay : otherDay).format(at);
}

// The same to the minute, for axes.
export const clock = (seconds, now_s) => moment(seconds, now_s).replace(/^(\d+:\d+):\d+$/, "$1");

export function away(seconds, now_s) {
  if (!known(seconds)) return DASH;
  const gap = seconds - now_s;
  return Math.abs(gap) < 1 ? "now" : gap > 0 ? `in ${duration(gap)}` : `${duration(gap)} ago`;
}

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
