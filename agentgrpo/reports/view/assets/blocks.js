// The data: compressed JSON blocks embedded in the page, or fetched from the server of the page.

const KEPT = 24;
const cache = new Map();
let overview = null;
let etag = null;

function served() {
  return document.querySelector("meta[name=agentgrpo-source]").getAttribute("content") === "served";
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function embedded(name) {
  const el = document.getElementById(`b-${name}`);
  if (!el) throw new Error(`the page has no block ${name}`);
  const stream = new Blob([bytesOf(el.textContent)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

async function fetched(name) {
  const answer = await fetch(`/block/${name}`);
  if (!answer.ok) throw new Error(`the server says ${answer.status} to block ${name}`);
  if (name === "overview") etag = answer.headers.get("etag");
  return answer.json();
}

/** A block; the most recent ones stay decoded. */
function block(name) {
  const found = cache.get(name);
  if (found) {
    cache.delete(name);
    cache.set(name, found);
    return found;
  }
  const coming = (served() ? fetched : embedded)(name);
  cache.set(name, coming);
  coming.catch(() => cache.delete(name));
  for (const old of cache.keys()) {
    if (cache.size <= KEPT) break;
    if (old.startsWith("chunk-")) cache.delete(old);
  }
  return coming;
}

async function episodeOf(number) {
  const rows = await block(`chunk-${Math.floor(number / overview.chunk)}`);
  const found = rows[number % overview.chunk];
  if (!found) throw new Error(`there is no episode ${number}`);
  return found;
}

/** The page's index as columns (columns.js), decoded at first use. */
async function indexed() {
  const raw = await block("index");
  if (!raw.columns) {
    raw.columns = columnsOf(raw, overview);
    measureReach(raw.columns);
  }
  return raw.columns;
}

/** Poll an active run every few seconds; call `changed` for new data, and `lost` with whether the server is lost. */
function watch(changed, lost) {
  const look = async () => {
    try {
      const answer = await fetch("/block/overview", { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store" });
      if (answer.status === 200) {
        etag = answer.headers.get("etag");
        overview = await answer.json();
        cache.clear();
        changed();
      }
      lost(false);
    } catch {
      lost(true);
    }
    setTimeout(look, 5000);
  };
  setTimeout(look, 5000);
}
