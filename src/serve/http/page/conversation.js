// The conversation: its messages, sending one and showing the reply as it comes.

function messageNode(message, index) {
  const node = make("article", "message " + message.role);
  const who = make("div", "who");
  who.append(make("b", "", message.role === "user" ? "You" : "Model"));
  const tools = make("span", "tools");
  const tool = (text, label, run) => {
    const button = make("button", "plain", text);
    button.type = "button";
    button.setAttribute("aria-label", label);
    button.onclick = run;
    tools.append(button);
  };
  if (message.role === "user" && !talk().partial) tool("Edit", "Edit this message in a copy of the conversation", () => edit(index));
  tool("Copy", "Copy this message", () => copy(message.content));
  who.append(tools);
  node.append(who, make("div", "body", message.content));
  return node;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).catch(error => note(error.message));
  const area = make("textarea");  // over plain HTTP from another machine there is no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

const sizeText = () => "What you say is read once. Then only the state is kept, here " + (stateBytes ? bytes(stateBytes) : "a few megabytes") + ".";

function showTalk() {
  history.replaceState(null, "", "#" + current);
  const log = $("log");
  log.replaceChildren();
  const {messages, partial} = talk();
  if (partial) log.append(make("p", "hello", "What was said before is not in this browser. The session goes on where it stopped."));
  if (!messages.length && !partial) {
    const hello = make("div", "hello");
    hello.append(make("strong", "", "A conversation of any length, in a state of fixed size"),
      make("span", "", sizeText()));
    log.append(hello);
  }
  messages.forEach((message, i) => log.append(messageNode(message, i)));
  log.scrollTop = log.scrollHeight;
  positions = [];
  showSessions();
  showPosition();
  update();
  try { localStorage.setItem("laplace-current", current); } catch {}  // last: what cannot be shown is not opened again
}

function update() {
  $("send").textContent = running ? "Stop" : "Send";
  $("send").disabled = !running && !$("input").value.trim();
  $("fork").disabled = !!running || !talk().messages.length;
}

async function open(name) {
  if (running) running.abort();
  current = name;
  editing = null;
  note("");
  drawers(false);
  $("input").focus();
  $("log").replaceChildren();
  try {
    await ask(name);
    if (name !== current) return;
    showTalk();
    if (trouble) listSessions();
  } catch (error) {
    if (name !== current) return;
    showSessions();
    note(error.message, "Try again", () => open(name));
  }
}

let editing = null;
function edit(index) {
  editing = index;
  $("input").value = talk().messages[index].content;
  note("The changed message begins a copy of the conversation.", "Cancel", () => { editing = null; $("input").value = ""; note(""); update(); });
  grow();
  update();
  $("input").focus();
}

async function send(text) {
  if (editing !== null) {  // the conversation up to there, under a new name
    const from = talk(), at = editing;
    editing = null;
    current = newName();
    store.all.set(current, {...blank(), title: titleOf(at === 0 ? text : from.title), messages: from.messages.slice(0, at)});
    showTalk();
  }
  note("");
  const name = current;
  running = new AbortController();
  update();
  try {
    await ask(name, running.signal);
    running.signal.throwIfAborted();
  } catch (error) {
    running = null;
    $("input").value = text;
    note(error.name === "AbortError" ? "Not sent." : error.message);
    return update();
  }
  const here = talk();
  if (!here.messages.length) showTalk();
  $("log").querySelector("div.hello")?.remove();
  fresh.delete(name);
  if (!here.title) here.title = titleOf(text);
  here.messages.push({role: "user", content: text});
  $("log").append(messageNode(here.messages.at(-1), here.messages.length - 1));
  const reply = {role: "assistant", content: ""};
  const node = messageNode(reply, here.messages.length);
  node.classList.add("busy");
  $("log").append(node);
  $("log").scrollTop = $("log").scrollHeight;
  store.save(name);
  showSessions();
  const show = follow(node.querySelector(".body"));
  let failed = "";
  try {
    // All that was said: the server finds how far its state goes, and reads the rest.
    const messages = here.partial ? here.messages.slice(here.known) : here.messages;
    const response = await post("/v1/chat/completions", {
      messages, session: name, session_input: here.partial ? "new" : "whole", stream: true,
      stream_options: {include_usage: true}, temperature: +$("temperature").value, max_tokens: Math.max(1, Math.round(+$("tokens").value)),
    }, running.signal);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) positions.push(event.usage.total_tokens), showPosition(event.usage);
      const piece = event.choices[0]?.delta.content;
      if (!piece) continue;
      reply.content += piece;
      show(piece);
    }
    here.messages.push(reply);
    here.known = here.messages.length;
  } catch (error) {
    if (reply.content) here.messages.push(reply);
    if (error.name === "AbortError") failed = "Stopped.";
    else failed = error.message;
    if (!reply.content && error.name !== "AbortError") here.messages.pop();
  }
  here.updated = Date.now() / 1000;
  store.save(name);
  running = null;
  if (name === current) {
    showTalk();
    if (failed) note(failed);
    if (failed && !reply.content && failed !== "Stopped.") $("input").value = text;
  }
  update();
  await listSessions();
}

// Shows the pieces of a growing text, once a frame, and in blocks: all of a long text would be laid out at every token.
function follow(body) {
  const log = $("log");
  let text = null, pieces = "";
  const begin = () => {
    text = document.createTextNode("");
    body.appendChild(make("div")).append(text);
  };
  const show = () => {
    const low = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    if (text.length > 4000 && text.data.endsWith("\n")) begin();
    text.appendData(pieces);
    pieces = "";
    if (low) log.scrollTop = log.scrollHeight;
  };
  begin();
  return piece => {
    if (!pieces) requestAnimationFrame(show);
    pieces += piece;
  };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

async function fork() {
  const from = talk(), name = newName();
  try {
    await post("/v1/sessions/" + current + "/fork", {name});
  } catch (error) {
    if (from.partial) return note(error.message);  // with its text, a copy begins anew from that
  }
  store.all.set(name, {...structuredClone(from), title: from.title + " (fork)", updated: Date.now() / 1000});
  await listSessions();
  open(name);
  note("A copy. The other conversation stays as it is.");
  store.save(name);
}
