/** Network policies: the hosts that a sandbox may reach, and the secrets that the gateway puts into its requests. */

import type { Action, EgressPolicy, InjectRule, Placeholder, Rule } from "./types.js";

/** The hosts that a sandbox may reach: none when empty. `deny` is looked at before `allow`. */
export interface Network {
  /**
   * Domains (`example.com`, `*.example.com`, `*`) and addresses (`10.1.2.3`, `10.0.0.0/8`), each optionally with
   * `:PORT` or `:FROM-TO`.
   */
  allow?: readonly string[];
  /** Domains and addresses, as in `allow`. */
  deny?: readonly string[];
  /** Whether every public host may be reached. */
  internet?: boolean;
  /** Further rules in the API's form, with methods and paths; looked at first. */
  rules?: readonly Rule[];
  /** Changes to requests, in the API's form. */
  inject?: readonly InjectRule[];
  /** Most connections at once. */
  connections?: number;
  /** Most bytes a second, each direction. */
  bytesPerSecond?: number;
}

/**
 * A secret of the server that a sandbox uses without seeing its value. The sandbox gets a placeholder in an environment
 * variable, and the gateway replaces it by the value in requests to the hosts. Without `hosts`, the hosts are those of
 * the secret's own scope.
 */
export interface UseSecret {
  name: string;
  /** The hosts, as `HOST` or `HOST:PORT`. */
  hosts?: readonly string[];
  /** The name of the variable; the secret's name when absent. */
  env?: string;
  /** How the placeholder begins, for programs that check how their key begins. */
  prefix?: string;
  /** Further headers in which the gateway replaces the placeholder. */
  headers?: readonly string[];
  path?: boolean;
  query?: boolean;
  body?: boolean;
  maskResponses?: boolean;
}

/** Makes the injection rule of a secret for these hosts, in the API's form. */
export function secretRule(secret: UseSecret, hosts: readonly string[]): InjectRule {
  const placeholder: Placeholder = { secret: secret.name, env: secret.env ?? secret.name };
  if (secret.prefix !== undefined) placeholder.prefix = secret.prefix;
  if (secret.headers) placeholder.headers = [...secret.headers];
  for (const place of ["path", "query", "body"] as const) if (secret[place]) placeholder[place] = true;
  const split = hosts.map(hostAndPort);
  const ports = new Set(split.flatMap(([, port]) => (port === undefined ? [] : [Number(port)])));
  const rule = { name: secret.name, hosts: split.map(([host]) => host), bearer: `{secret:${secret.name}}`, placeholders: [placeholder] };
  return {
    ...rule,
    ...(ports.size > 0 ? { ports: [...ports].sort((a, b) => a - b) } : {}),
    ...(secret.maskResponses ? { mask_responses: true } : {}),
  } as InjectRule;
}

/** The policy in the API's form. It allows the hosts of the injection rules; `allow` need not name them. */
export function policy(network: Network, inject: readonly InjectRule[] = []): EgressPolicy {
  const injected = [...(network.inject ?? []), ...inject];
  const rules = [
    ...(network.rules ?? []),
    ...(network.deny ?? []).map((text) => rule("deny", text)),
    ...(network.allow ?? []).map((text) => rule("allow", text)),
  ];
  if (!network.internet) {
    for (const one of injected) {
      for (const domain of one.hosts) {
        for (const port of one.ports?.length ? one.ports : [443]) {
          rules.push({ action: "allow", domain, ports: [String(port)] } as Rule);
        }
      }
    }
  }
  const made: Partial<EgressPolicy> = { internet: network.internet ? "on" : rules.length > 0 ? "rules" : "off", rules };
  if (injected.length > 0) made.inject = injected;
  if (network.connections !== undefined || network.bytesPerSecond !== undefined) {
    made.limits = { connections: network.connections, bytes_per_s: network.bytesPerSecond };
  }
  return made as EgressPolicy;
}

/** Splits `HOST:PORT` or `HOST:FROM-TO` into the host and the port or range of ports, which may be absent. */
function hostAndPort(text: string): [string, string | undefined] {
  const bracketed = /^\[([^\]]*)\](?::(.*))?$/.exec(text);
  if (bracketed) return [bracketed[1] ?? "", bracketed[2]];
  const parts = text.split(":");
  return parts.length > 2 ? [text, undefined] : [parts[0] ?? "", parts[1]];
}

function rule(action: Action, text: string): Rule {
  const [host, port] = hostAndPort(text);
  const isAddress = /^\d+\.\d+\.\d+\.\d+(\/\d+)?$/.test(host) || host.includes(":");
  const made = isAddress ? { action, cidr: host } : { action, domain: host };
  return (port === undefined ? made : { ...made, ports: [port] }) as Rule;
}
