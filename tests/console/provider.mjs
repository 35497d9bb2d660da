// Run an OpenID Connect provider on a free port of this machine, which logs in whom the test names.
//
// node provider.mjs REDIRECT_URI; reads the claims of the next person from standard input, one JSON object a line.

import { createInterface } from "node:readline";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

console.info = console.warn; // standard output is for the test
const people = {};
let next = "";

const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [{
    client_id: "console",
    client_secret: "secret of the test client",
    redirect_uris: [process.argv[2]],
  }],
  claims: { openid: ["sub"], profile: ["preferred_username", "groups", "tenant"], email: ["email"] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...people[id] }) }),
  features: { devInteractions: { enabled: false } },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  pkce: { required: () => true },
  cookies: { keys: ["key of the test"] },
});

// Instead of a form: log the next person in, and grant what the console asks for.
server.on("request", async (request, response) => {
  if (!request.url.startsWith("/interaction/")) {
    provider.callback()(request, response);
    return;
  }
  const { params, prompt } = await provider.interactionDetails(request, response);
  if (next === "") {
    await provider.interactionFinished(request, response, { error: "access_denied" });
  } else if (prompt.name === "login") {
    await provider.interactionFinished(request, response, { login: { accountId: next } });
  } else {
    const grant = new provider.Grant({ accountId: next, clientId: params.client_id });
    grant.addOIDCScope(params.scope);
    await provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
  }
});

createInterface({ input: process.stdin }).on("line", (line) => {
  const claims = JSON.parse(line);
  next = claims.sub ?? "";
  people[next] = claims;
  console.log("ready");
});
console.log(issuer);
