// What the others stand on: making elements, what this browser keeps, calls to the server.
const $ = id => document.getElementById(id);
const make = (tag, name, text) => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
};
const bytes = n => n >= 1e9 ? (n / 1e9).toFixed(2) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : (n / 1e3).toFixed(1) + " kB";
const count = n => n.toLocaleString("en");

const isName = text => /^[\w-]{1,64}$/.test(text);
const blank = () => ({title: "", messages: [], known: 0, updated: Date.now() / 1000});

// What this browser knows of conversations: name -> {title, messages: [{role, content}], known, updated}.
// `known`: messages that the server's state holds. `partial`: its beginning is not in this browser.
// Each has a key of its own, so that two tabs do not write over each other's.
const KEY = "laplace:";
const store = {
  all: new Map(),  // no plain object: a session may be called "constructor"
  take(name, text) {  // what cannot be read counts as nothing
    try {
      const talk = {...blank(), ...JSON.parse(text)};
      if (!isName(name) || !talk.messages.every(m => typeof m.content === "string")) return false;
      this.all.set(name, talk);
      return true;
    } catch { return false; }
  },
  load() {
    try {
      for (const key of Object.keys(localStorage)) if (key.startsWith(KEY)) this.take(key.slice(KEY.length), localStorage.getItem(key));
      this.migrate();
    } catch {}  // an old text that cannot be read, or a browser that keeps nothing
  },
  migrate() {  // one key held all of them
    const old = Object.entries(JSON.parse(localStorage.getItem("laplace") || "{}"));
    localStorage.removeItem("laplace");  // first: there may be no room for both
    for (const [name, talk] of old) if (!this.all.has(name) && this.take(name, JSON.stringify(talk))) this.save(name);
  },
  save(name) {
    const talk = this.all.get(name);
    try { if (talk) localStorage.setItem(KEY + name, JSON.stringify(talk)); } catch { note("This browser's storage is full; delete conversations."); }
  },
  drop(name) {
    this.all.delete(name);
    try { localStorage.removeItem(KEY + name); } catch {}
  },
};
let current = "";
let listed = [];          // sessions as the server lists them
let trouble = "";         // why it does not: shown while there is nothing else to say
let rowsShown = 200;
let running = null;       // AbortController of the reply that is coming
let sending = null;       // the promise of its end
let stateBytes = 0, positions = [];
const fresh = new Set();  // names made here that no request has used

function newName() {
  const name = "c-" + [...crypto.getRandomValues(new Uint8Array(8))].map(b => b.toString(16).padStart(2, "0")).join("");
  fresh.add(name);
  return name;
}
function talk() {
  if (!store.all.has(current)) store.all.set(current, blank());
  return store.all.get(current);
}
const titleOf = text => text.trim().replace(/\s+/g, " ").slice(0, 60) || "Conversation";

async function api(path, options) {
  const response = await fetch(path, options);
  if (response.ok) return response;
  let message = response.status + " " + response.statusText;
  try { message = (await response.json()).error.message; } catch {}
  throw Object.assign(new Error(message), {status: response.status});
}
const post = (path, body, signal) => api(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal});

// Whether the server has a session whose texts are not here. Asked for itself: the list may be old, or have failed.
async function ask(name, signal) {
  if (fresh.has(name) || talk().messages.length) return;
  const held = await api("/v1/sessions/" + name, {signal}).then(() => true, error => {
    if (error.status !== 404) throw error;
    return false;
  });
  const known = store.all.get(name);  // by now another tab may have brought its texts
  if (known && !known.messages.length) known.partial = held;
}

function note(text, action, run) {
  text ||= trouble;
  $("note").replaceChildren(...(text ? [make("span", "", text)] : []));
  if (action) {
    const button = make("button", "plain", action);
    button.type = "button";
    button.onclick = run;
    $("note").append(button);
  }
}
