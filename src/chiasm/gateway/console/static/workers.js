// The fleet: each worker in the columns of its stages.

import { bytes, count, el, ms } from "./format.js";

const STAGES = ["encode", "prefill", "decode"];
const STATES = { ready: "good", starting: "warn", draining: "warn", down: "bad" };

// Workers of one stage stand in its column; those of several follow below, as wide as they reach.
export function workers(fleet, memory) {
  const members = [...fleet.members].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  const columns = STAGES.map((_, index) => {
    const own = members.filter((member) => places(member).join() === String(index + 1));
    return el("div", { class: `lane-column s${index + 1}` }, ...own.map((member) => card(member, memory[member.name])));
  });
  const wide = members.filter((member) => places(member).length !== 1);
  return [...columns.filter((column) => column.children.length), ...wide.map((member) => card(member, memory[member.name]))];
}

function places(member) {
  return STAGES.map((stage, index) => (member.roles.includes(stage) ? index + 1 : 0)).filter(Boolean);
}

function card(member, memory) {
  const found = places(member);
  const [first, last] = found.length ? [found[0], found.at(-1)] : [1, 3];
  const column = first === last ? `s${first}` : `s${first}e${last}`;
  const node = el("article", { class: `worker ${member.state in STATES ? member.state : ""} ${column}` });
  node.append(el("h3", { text: member.name }, el("span", { class: STATES[member.state] ?? "", text: member.state })));
  node.append(el("p", { text: [member.roles.join(", "), member.device].filter(Boolean).join(" on ") }));
  if (member.reason) node.append(el("p", { class: "bad", text: member.reason }));
  const list = el("dl");
  for (const [name, value] of [...figures(member), ...sizes(memory)]) {
    list.append(el("div", {}, el("dt", { text: name }), el("dd", { text: value })));
  }
  node.append(list);
  return node;
}

function figures(member) {
  const rows = [];
  if (member.roles.includes("encode")) rows.push(["encoding", under(member.num_encoding, member.encode_wait_s)]);
  if (member.roles.includes("prefill")) rows.push(["prefilling", under(member.num_prefilling, member.prefill_wait_s)]);
  if (member.roles.includes("decode")) rows.push(["decoding", count(member.num_decoding)]);
  const stats = member.stats;
  if (stats && (member.roles.includes("prefill") || member.roles.includes("decode"))) {
    rows.push(["in the engine", `${count(stats.num_running)} run, ${count(stats.num_waiting)} wait`]);
    rows.push(["free slots", count(stats.num_free_slots)]);
    rows.push(["cached KV blocks", count(stats.num_cached_blocks)]);
  }
  if (stats && (member.roles.includes("encode") || member.roles.includes("prefill"))) {
    rows.push(["cached embeddings", count(stats.num_cached_embeddings)]);
    rows.push(["held embeddings", count(stats.num_held_embeddings)]);
  }
  if (stats) rows.push(["tensors offered", count(stats.num_offered_tensors)]);
  return rows;
}

function sizes(memory) {
  if (!memory?.process) return [];
  const used = (kind) => memory.parts.filter((part) => part.kind === kind).reduce((sum, part) => sum + part.used_bytes, 0);
  return [
    ["memory", `${bytes(memory.process.rss_bytes)}, peak ${bytes(memory.process.peak_rss_bytes)}`],
    ["used by requests", bytes(used("requests"))],
    ["used by caches", bytes(used("cache"))],
  ];
}

function under(number, wait_s) {
  return wait_s > 0.0005 ? `${count(number)} (${ms(wait_s)})` : count(number);
}
