// A real OpenID provider on a free port of loopback, which accepts any password. Prints its address.
//
// The user `ann` is in the group `platform`. All others are in no group. The address of `eve` is not verified.

import { createServer } from "node:http";
import Provider from "oidc-provider";

const server = createServer();
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const url = `http://127.0.0.1:${server.address().port}`;
const device = "urn:ietf:params:oauth:grant-type:device_code";
const provider = new Provider(url, {
  clients: [
    {
      client_id: "atoll",
      client_secret: "a secret: of & the client",
      redirect_uris: ["http://console.localhost/login/oidc/callback"],
      grant_types: ["authorization_code", device],
    },
  ],
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "email", "groups"],
  features: { deviceFlow: { enabled: true } },
  pkce: { required: () => true },
  cookies: { keys: ["of a test"] },
  findAccount: (_context, id) => ({
    accountId: id,
    claims: () => ({
      sub: id,
      email: `${id}@example.com`,
      email_verified: id !== "eve",
      groups: id === "ann" ? ["platform"] : [],
    }),
  }),
});
// The Atoll server under test listens on a free port too, so the redirect URI may have any port.
provider.Client.prototype.redirectUriAllowed = (uri) =>
  /^http:\/\/console\.localhost:\d+\/login\/oidc\/callback$/.test(uri);
server.on("request", provider.callback());
console.log(url);
