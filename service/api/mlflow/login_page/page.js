"use strict";

const LINK = "#once=";
const form = document.getElementById("key-form");
const fault = document.getElementById("fault");
// The page of MLflow that sent the visitor here.
const target = location.hash.startsWith("#/") ? location.hash : "";

async function send(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return answer;
}

async function signIn(body, refused) {
  const answer = await send("login", body);
  if (answer.ok) {
    location.replace(`mlflow/${target}`);
  } else {
    fault.textContent = answer.status === 401 ? refused : `The service answered ${answer.status}.`;
  }
}

function report(error) {
  fault.textContent = `The service does not answer: ${error}`;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const key = document.getElementById("key").value.trim();
  signIn({ key }, "The service does not accept this key.").catch(report);
});

document.getElementById("sign-out").addEventListener("click", () => {
  send("mlflow/logout", {})
    .then((answer) => {
      fault.textContent = answer.ok
        ? "You are signed out."
        : `The service answered ${answer.status}: you are still signed in.`;
    })
    .catch(report);
});

if (location.hash.startsWith(LINK)) {
  const link = location.hash.slice(LINK.length);
  history.replaceState(null, "", location.pathname);
  signIn({ link }, "This link has been used or is older than an hour.").catch(report);
}
