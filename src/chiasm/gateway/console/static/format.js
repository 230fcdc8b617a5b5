// Numbers and elements. All text goes in as text: a model's name or an answer is never markup.

export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") node.textContent = value;
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function ms(seconds) {
  const value = seconds * 1000;
  if (value >= 1000) return `${(value / 1000).toFixed(value >= 10000 ? 1 : 2)} s`;
  return `${value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2)} ms`;
}

export function count(value) {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e5) return `${(value / 1e3).toFixed(0)} k`;
  return String(Math.round(value));
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  for (; value >= 999.5 && index < units.length - 1; index++) value /= 1024;
  return `${index && value < 99.95 ? value.toFixed(1) : value.toFixed(0)} ${units[index]}`;
}

export function rate(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const index = Math.max(0, units.findIndex(([, size]) => seconds >= size));
  if (seconds < 1) return "0 s";
  const [name, size] = units[index];
  const first = Math.floor(seconds / size);
  const rest = index + 1 < units.length ? Math.floor((seconds % size) / units[index + 1][1]) : 0;
  return rest ? `${first} ${name} ${rest} ${units[index + 1][0]}` : `${first} ${name}`;
}

export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

export function words(name) {
  return name.replaceAll("_", " ");
}

export function show(node, children) {
  node.replaceChildren(...children);
}
