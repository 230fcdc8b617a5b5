// The server: relative addresses, and the key of this tab.

const STORE = "chiasm-console-key";
const base = location.pathname.replace(/console\/?$/, "");

export function key() {
  return sessionStorage.getItem(STORE) ?? "";
}

export function setKey(value) {
  sessionStorage.setItem(STORE, value);
}

export class NeedsKey extends Error {}

export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  const response = await fetch(base + path, { ...options, headers, cache: "no-store" });
  if (response.status === 401) throw new NeedsKey(key() ? "The server does not take this key." : "The server wants a key.");
  if (response.status === 403) throw new NeedsKey(await reason(response));
  if (!response.ok) throw new Error(await reason(response));
  return response;
}

export async function getJson(path) {
  return (await call(path)).json();
}

async function reason(response) {
  try {
    const { error } = await response.json();
    return [error.message, error.hint].filter(Boolean).join(". ");
  } catch {
    return `HTTP status ${response.status}`;
  }
}

// Asks one question and gives each chunk of the streamed answer to `onChunk`.
export async function ask(body, onChunk, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data && data !== "[DONE]") {
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error([chunk.error.message, chunk.error.hint].filter(Boolean).join(". "));
        onChunk(chunk);
      }
    }
  }
}
