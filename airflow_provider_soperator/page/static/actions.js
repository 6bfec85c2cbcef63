// The form of an action in a dialog, and its way to Airflow's API: with the rights of the one who looks.
"use strict";

const REFUSED = {
  401: OVER[401],
  403: "Airflow does not let you trigger this DAG.",
  404: "The DAG is not there any more.",
};
const UNSURE = "and may have begun the run. To try again makes no second run, unless you change something.";

function valueOf(field) {
  const text = field.value.trim();
  switch (field.dataset.form) {
    case "boolean": return field.checked;
    case "choice": return JSON.parse(field.value);
    case "json": return text ? JSON.parse(text) : null;
    case "number": return text ? Number(text) : null;
    case "moment": return text ? new Date(text).toISOString() : null;
    default: return text || !("nullable" in field.dataset) ? text : null;
  }
}

// What Airflow says of values that it does not take: a text, or one for each of them.
function wordsOf(detail) {
  return Array.isArray(detail) ? detail.map((one) => one.msg).join("; ") : String(detail ?? "");
}

async function trigger(form) {
  const conf = Object.fromEntries([...form.elements].filter((one) => one.name).map((one) => [one.name, valueOf(one)]));
  // A second try after an answer that got lost makes no second run, and one of something else is another run.
  const [ids, sent] = [JSON.parse(form.dataset.ids ?? "{}"), JSON.stringify(conf)];
  ids[sent] ??= `page__${new Date().toISOString()}__${Math.random().toString(36).slice(2, 8)}`;
  Object.assign(form.dataset, { ids: JSON.stringify(ids), id: ids[sent] });
  const answer = await ask(form.dataset.runs, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ dag_run_id: form.dataset.id, logical_date: null, conf }),
  });
  if (answer.ok || answer.status === 409) return;
  // Of a proxy, or of an Airflow that has failed midway.
  if (answer.status >= 500) throw new Error(`Airflow answers ${answer.status}, ${UNSURE}`);
  const { detail } = await answer.json().catch(() => ({}));
  throw new Error(REFUSED[answer.status] ?? `Airflow refuses it (${answer.status}): ${wordsOf(detail)}`);
}

function lead(form) {
  const link = document.createElement("a");
  link.className = "airflow";
  link.href = form.dataset.run + encodeURIComponent(form.dataset.id);
  link.textContent = `The run ${form.dataset.id} was triggered`;
  for (const part of form.querySelectorAll(".effects, .field, h2, .go")) part.remove();
  form.querySelector(".said").replaceChildren(link);
  link.focus();
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("form.action")) return;
  event.preventDefault();
  const [said, go] = [form.querySelector(".said"), form.querySelector(".go")];
  said.textContent = "";
  go.disabled = true;
  try {
    await trigger(form);
    lead(form);
  } catch (error) {
    said.textContent = isLost(error) ? `Airflow does not answer, ${UNSURE}` : error.message;
    go.disabled = false;
    go.focus();
  }
});

async function read(url) {
  const answer = await ask(url);
  if (!answer.ok) throw new Error(REFUSED[answer.status] ?? `Airflow answers ${answer.status}.`);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function whyUnread(error) {
  return isLost(error) ? "Airflow does not answer." : error.message;
}

// What the action will do, once it is about other nodes or jobs.
document.addEventListener("change", async (event) => {
  const form = event.target.form;
  if (!form?.matches("form.action")) return;
  const url = new URL(form.dataset.told, location.href);
  for (const field of form.elements) if (field.name) url.searchParams.set(field.name, field.value);
  form.dataset.asked = url;
  const effects = form.querySelector(".effects");
  // The button below stays where it is, as it may be what is being pressed.
  effects.style.minHeight = `${effects.offsetHeight}px`;
  effects.replaceChildren("Being read …");
  const told = await read(url).then(
    (drawn) => drawn.querySelector(".effects").childNodes,
    (error) => [`Not told: ${whyUnread(error)}`],
  );
  // Answers may come in another order.
  if (form.dataset.asked !== String(url)) return;
  effects.replaceChildren(...told);
  effects.style.minHeight = "";
});

async function show(link) {
  const drawn = await read(link.href);
  if (document.querySelector("dialog")) return;
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "action-title");
  dialog.append(drawn.querySelector("form.action"));
  dialog.addEventListener("close", () => {
    dialog.remove();
    // The page may have been drawn anew meanwhile.
    document.getElementById(link.id)?.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector("input[value=''], .go").focus();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.act, dialog a.leave");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.matches(".leave")) link.closest("dialog").close();
  else show(link).catch((error) => tell(whyUnread(error)));
});

// What looks like a button is pressed like one.
document.addEventListener("keydown", (event) => {
  if (event.key !== " " || !event.target.matches("a[role=button]")) return;
  event.preventDefault();
  event.target.click();
});
