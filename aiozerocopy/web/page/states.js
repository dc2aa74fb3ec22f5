// The states of the page: for each the short word beside the title, the headline over the
// picture, and a sentence for somebody who is new to this page.

const STALE = 2000; // ms without a frame, or without an answer

export const STATES = {
  connecting: ["Connecting", "Connecting to the server", ""],
  waiting: ["Waiting", "Connected, waiting for the first frame", ""],
  live: ["Live", "", ""],
  paused: ["Paused", "No new frames", "The server answers: its source has paused."],
  stalled: ["Stalled", "New frames do not arrive",
    "The server has newer ones: the connection is too slow for them."],
  unshowable: ["Not shown", "This frame cannot be shown", ""],
  unable: ["Not possible", "This does not work here", "Choose another mode above."],
  lost: ["Reconnecting", "The server does not answer", "Trying again until it does."],
  ended: ["Ended", "The stream has ended", "It resumes when the server is back."],
  full: ["Full", "Too many are watching", "Trying again until there is room."],
  refused: ["Refused", "The server refuses this page", ""],
};

// The state of a connection: see `Screen.watch`.
export function stateOf({ begin, first, frame, answer, reason, newest, published }, now) {
  if (now - answer > STALE) return "lost";
  if (reason) return "unshowable";
  if (frame === null && (now - begin < STALE || published <= first + 1)) return "waiting";
  if (now - frame < STALE) return "live";
  return published > newest + 1 ? "stalled" : "paused";
}
