// The live picture: what the engine does, once a second.

const history60 = {rate: [], resident: []};
let last = null;

function line(id, values, top, area) {
  const svg = $(id), make = (name, d) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", d);
    path.setAttribute("class", name);
    return path;
  };
  const x = i => values.length < 2 ? i * 100 : i * 100 / (values.length - 1), y = v => 48 - 44 * (top ? v / top : 0);
  const points = (values.length === 1 ? [values[0], values[0]] : values).map((v, i) => x(i).toFixed(1) + " " + y(v).toFixed(1));
  svg.replaceChildren(make("base", "M0 48H100"));
  if (!points.length) return;
  if (area) svg.append(make("area", "M0 48L" + points.join("L") + "L100 48Z"));
  svg.append(make("", "M" + points.join("L")));
}

function showPosition(usage) {
  const session = listed.find(s => s.id === current);
  const position = usage ? usage.total_tokens : session ? session.position : positions.at(-1) || 0;
  $("memory").textContent = stateBytes ? bytes(stateBytes) : "–";
  $("memory-note").textContent = position
    ? "The same at every token, " + count(position) + " so far." + (usage ? " Of the last prompt, " + count(usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens) + " were read anew." : "")
    : "The same at every token.";
  line("memory-chart", [1, 1], 1.6, true);
}

async function look() {
  try {
    const text = await (await api("/metrics")).text(), values = {};
    for (const [, name, value] of text.matchAll(/^([\w:]+){[^}]*} (\S+)$/gm)) values[name] ??= +value;
    const now = performance.now(), tokens = values["laplace:engine_generated_tokens_total"] + values["laplace:engine_prompt_tokens_total"];
    const rate = last ? Math.max(0, (tokens - last.tokens) / ((now - last.now) / 1000)) : 0;
    last = {now, tokens};
    for (const [name, value] of [["rate", rate], ["resident", values.process_resident_memory_bytes]]) {
      history60[name].push(value);
      if (history60[name].length > 60) history60[name].shift();
    }
    $("rate").textContent = count(Math.round(rate));
    line("rate-chart", history60.rate, Math.max(1, ...history60.rate), true);
    $("resident").textContent = bytes(history60.resident.at(-1));
    line("resident-chart", history60.resident, Math.max(...history60.resident) * 1.5, true);
    const used = values["laplace:state_slots_used"], total = values["laplace:state_slots"];
    $("used").textContent = count(used);
    $("total").textContent = count(total);
    const shown = Math.min(total, 96), lit = total > shown ? Math.ceil(used * shown / total) : used;
    if ($("slots").children.length !== shown) $("slots").replaceChildren(...Array.from({length: shown}, () => make("i")));
    [...$("slots").children].forEach((slot, i) => slot.classList.toggle("used", i < lit));
    const waiting = values["vllm:num_requests_waiting"];
    $("waiting").textContent = waiting ? count(waiting) + " wait for a slot" : "Nobody waits.";
    if (!stateBytes) { stateBytes = values["laplace:state_bytes"]; showPosition(); $("log").querySelector("div.hello span")?.replaceChildren(sizeText()); }
  } catch {
    $("waiting").textContent = "The server does not answer.";
  }
  setTimeout(look, document.hidden ? 5000 : 1000);
}
