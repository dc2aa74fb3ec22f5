// The server that this page came from: its addresses, its status, and the errors in which
// a request for the status may end.

export const query = new URLSearchParams(location.search);
const token = query.get("token");

export class Refusal extends Error {} // trying again later would not help
export class Full extends Error {} // trying again later may help
export class Unable extends Error {} // this way does not work here, another may

export function address(path, scheme = location.protocol) {
  const url = new URL(path, location.href);
  url.protocol = scheme;
  url.search = url.hash = "";
  if (token !== null) url.searchParams.set("token", token);
  return url;
}

// Why a WebSocket was refused, which no browser tells its page.
export async function askReason(patience) {
  const url = address("status");
  url.searchParams.set("origin", location.origin);
  const signal = AbortSignal.timeout(patience);
  const response = await fetch(url, { signal, cache: "no-store" });
  const { refused, full } = response.ok ? await response.json() : {};
  if (refused) return new Refusal(refused);
  return full ? new Full() : new Error("refused");
}

// What the server offers, how many frames were published, how far its clock is ahead of the
// page's, and how long the answer took (ms).
export async function askStatus(patience) {
  const begin = performance.now();
  const signal = AbortSignal.timeout(patience);
  const response = await fetch(address("status"), { signal, cache: "no-store" });
  const end = performance.now();
  if (response.status === 401 || response.status === 403)
    throw new Refusal((await response.text()).trim());
  if (!response.ok) throw new Error(String(response.status));
  const status = await response.json();
  const middle = performance.timeOrigin + (begin + end) / 2;
  return { ...status, ahead: status.now_us / 1000 - middle, took: end - begin };
}
