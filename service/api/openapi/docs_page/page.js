"use strict";

// The key is kept in this variable alone: closing the page forgets it.
let key = "";

const form = document.getElementById("key-form");
const fault = document.getElementById("fault");

function withKey(headers) {
  return key && !headers.Authorization ? { ...headers, Authorization: `Bearer ${key}` } : headers;
}

async function open() {
  const answer = await fetch("openapi.json", { headers: withKey({}) });
  form.hidden = answer.status !== 401;
  if (answer.ok) {
    show(await answer.json());
  } else if (answer.status !== 401) {
    fail(`The description of the interface cannot be read: status ${answer.status}`);
  } else if (key) {
    fault.textContent = "The service does not accept this key.";
  }
}

function show(description) {
  SwaggerUIBundle({
    spec: description,
    dom_id: "#swagger-ui",
    deepLinking: true,
    displayRequestDuration: true,
    validatorUrl: null,
    requestInterceptor: (request) => {
      request.headers = withKey(request.headers);
      return request;
    },
  });
}

function fail(message) {
  document.getElementById("swagger-ui").textContent = message;
}

function tryToOpen() {
  open().catch((error) => fail(`The service does not answer: ${error}`));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  key = document.getElementById("key").value.trim();
  tryToOpen();
});
tryToOpen();
