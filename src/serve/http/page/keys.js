// Keys, buttons and the start.

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = Math.min(input.scrollHeight, innerHeight * .4) + "px";
}
function submit() {
  if (running) return running.abort();
  const text = $("input").value;
  if (!text.trim()) return;
  $("input").value = "";
  grow();
  sending = send(text);
}
function drawers(shown, which) {
  for (const [panel, button] of [["sessions-panel", "show-sessions"], ["live-panel", "show-live"]]) {
    const on = shown && panel === which && !$(panel).classList.contains("shown");
    $(panel).classList.toggle("shown", on);
    $(button).setAttribute("aria-expanded", on);
  }
}
$("form").onsubmit = event => { event.preventDefault(); submit(); };
$("input").oninput = () => { grow(); update(); };
$("input").onkeydown = event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!running) submit(); }
  if (event.key === "ArrowUp" && !$("input").value && !running && !talk().partial) {
    const index = talk().messages.findLastIndex(m => m.role === "user");
    if (index >= 0) { event.preventDefault(); edit(index); }
  }
};
addEventListener("keydown", event => {
  if (event.key === "Escape") { if (running) running.abort(); drawers(false); }
  if (event.altKey && event.key.toLowerCase() === "n") { event.preventDefault(); open(newName()); }
});
$("new").onclick = () => open(newName());
$("fork").onclick = fork;
$("show-sessions").onclick = () => drawers(true, "sessions-panel");
$("show-live").onclick = () => drawers(true, "live-panel");
$("log").onclick = () => drawers(false);
addEventListener("hashchange", () => { const name = location.hash.slice(1); if (isName(name) && name !== current) open(name); });
addEventListener("storage", hear);

(async () => {
  store.load();
  try { current = location.hash.slice(1) || localStorage.getItem("laplace-current") || ""; } catch {}
  if (!isName(current)) current = newName();
  try {
    const [models, version] = await Promise.all(["/v1/models", "/version"].map(async p => (await api(p)).json()));
    $("model").textContent = models.data[0].id + " · " + version.engine;
    document.title = models.data[0].id + " · laplace";
  } catch (error) { note(error.message); }
  await listSessions();
  if (!running) open(current);
  look();
})();
