// The list of sessions, and what other tabs do to them.

async function listSessions() {
  const before = trouble;
  try {
    listed = (await (await api("/v1/sessions")).json()).data;
    trouble = "";
    if (before && $("note").textContent === before) note("");
  } catch (error) { note(trouble = error.message); }
  showSessions();
  showPosition();
}

function showSessions() {
  const rows = new Map([...store.all].filter(([, t]) => t.messages.length).map(([name, t]) => [name, {name, title: t.title || name, updated: t.updated}]));
  for (const s of listed) rows.set(s.id, {...(rows.get(s.id) || {name: s.id, title: s.id, updated: s.updated}), position: s.position});
  const list = [...rows.values()].sort((a, b) => b.updated - a.updated);
  $("sessions").replaceChildren(...list.slice(0, rowsShown).map(row => {
    const item = make("li");
    item.setAttribute("aria-current", row.name === current);
    const openButton = make("button", "open");
    openButton.append(make("b", "", row.title), make("small", "", row.position ? count(row.position) + " tokens" : row.position === 0 ? "not readable" : "not saved"));
    openButton.onclick = () => open(row.name);
    const drop = make("button", "plain drop", "✕");
    drop.setAttribute("aria-label", "Delete " + row.title);
    drop.onclick = () => remove(row);
    item.append(openButton, drop);
    return item;
  }));
  if (list.length <= rowsShown) return;
  const more = make("button", "plain", "Show more of " + count(list.length));
  more.onclick = () => { rowsShown += 200; showSessions(); };
  $("sessions").appendChild(make("li")).append(more);
}

async function remove(row) {
  if (!confirm("Delete “" + row.title + "”?")) return;
  const stopped = row.name === current && running;
  if (stopped) {
    running.abort();
    await sending;
  }
  try {
    if (stopped || listed.some(s => s.id === row.name)) await erase(row.name);
  } catch (error) { return note(error.message); }
  store.drop(row.name);
  await listSessions();
  if (row.name === current) open(newName());
}

// The server holds a session until it sees that the client of its reply is gone.
async function erase(name) {
  for (const end = performance.now() + 2000;;) {
    try { return await api("/v1/sessions/" + name, {method: "DELETE"}); } catch (error) {
      if (error.status === 404) return;
      if (error.status !== 409 || performance.now() > end) throw error;
    }
    await new Promise(done => setTimeout(done, 100));
  }
}

// What other tabs did. What they said in a conversation whose reply is coming here gives way to that.
function hear({key, newValue}) {
  if (key !== null && !key.startsWith(KEY)) return;
  const name = key === null ? current : key.slice(KEY.length);  // null: all was cleared
  if (running && name === current) return;
  if (key === null) store.all.clear();
  if (newValue === null) store.all.delete(name); else store.take(name, newValue);
  if (name === current) newValue === null ? open(newName()) : showTalk();
  listSessions();
}
