//! What sandboxes do on the network, and what they may: `net show`, `net denied`, `net allow`, `net deny`, `net presets`.

use atoll_api::UpdateSandbox;
use atoll_client::Client;
use atoll_core::network::{Stage, narrowest};
use atoll_core::policy::{Action, EgressMode, EgressPolicy, InjectRule, Internet, Rule};

use crate::cli::{ChangeArgs, NetCommand, net_rules};
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, clean, table};
use crate::presets;
use crate::units::format_bytes;

/// `atoll net …`
pub(super) async fn net(client: &Client, printer: Printer, command: NetCommand) -> Result<()> {
    match command {
        NetCommand::Show { sandbox } => show(client, printer, &sandbox).await,
        NetCommand::Denied { sandbox } => denied(client, printer, &sandbox).await,
        NetCommand::Allow(args) => change(client, printer, Action::Allow, args).await,
        NetCommand::Deny(args) => change(client, printer, Action::Deny, args).await,
        NetCommand::Presets => presets(printer),
    }
}

/// `atoll net presets`
pub(super) fn presets(printer: Printer) -> Result<()> {
    let all = presets::all().map_err(Failure::Usage)?;
    printer.result(&all, || {
        let rows = all.iter().map(|(name, hosts)| [format!("{}{name}", presets::SIGN), hosts.join(" ")]);
        table(["PRESET", "HOSTS"], rows)
    })
}

async fn change(client: &Client, printer: Printer, action: Action, args: ChangeArgs) -> Result<()> {
    let mut rules: Vec<Rule> = Vec::new();
    for target in &args.targets {
        rules.extend(net_rules(action, target).map_err(Failure::Usage)?);
    }
    for rule in &mut rules {
        rule.from.clone_from(&args.from);
    }
    let before = client.get_sandbox(&args.sandbox).await?.egress;
    let after = if args.remove { without(&before, &rules)? } else { with(&before, action, rules)? };
    if after == before {
        printer.note("that is so already");
        return printer.result(&before, String::new);
    }
    let update = UpdateSandbox { egress: Some(after), ..UpdateSandbox::default() };
    let sandbox = client.update_sandbox(&args.sandbox, &update).await?;
    printer.result(&sandbox.egress, || diff(&before, &sandbox.egress))
}

/// A policy with further rules: those that deny come first, those that allow last.
fn with(before: &EgressPolicy, action: Action, rules: Vec<Rule>) -> Result<EgressPolicy> {
    let mut after = before.clone();
    let new = rules.into_iter().filter(|rule| !before.rules.iter().any(|known| same(known, rule)));
    match (action, before.internet) {
        (Action::Deny, Internet::Off) => {
            return Err(Failure::Usage(
                "the sandbox has no internet at all: there is nothing to deny".into(),
            ));
        }
        (Action::Deny, Internet::On | Internet::Rules) => after.rules.splice(..0, new).for_each(drop),
        (Action::Allow, internet) => {
            if internet == Internet::Off {
                // The old rules had no effect so far, and this change must not make them count unnoticed.
                after.rules.clear();
                after.internet = Internet::Rules;
            }
            after.rules.extend(new);
        }
    }
    Ok(after)
}

/// A policy without some rules.
fn without(before: &EgressPolicy, rules: &[Rule]) -> Result<EgressPolicy> {
    let mut after = before.clone();
    after.rules.retain(|known| !rules.iter().any(|rule| same(known, rule)));
    match rules.iter().find(|rule| !before.rules.iter().any(|known| same(known, rule))) {
        // Of a preset some may have gone before.
        Some(missing) if missing.name.is_none() || after == *before => Err(Failure::Usage(format!(
            "the sandbox has no rule '{missing}': 'atoll net show' lists its rules"
        ))),
        Some(_) | None => Ok(after),
    }
}

/// Whether two rules say the same, also under different names.
fn same(one: &Rule, other: &Rule) -> bool {
    *one == Rule { name: one.name.clone(), ..other.clone() }
}

/// The differences between two policies, a line each.
pub(super) fn diff(before: &EgressPolicy, after: &EgressPolicy) -> String {
    let (old, new) = (lines(before), lines(after));
    let gone = old.iter().filter(|line| !new.contains(line)).map(|line| format!("- {line}"));
    let come = new.iter().filter(|line| !old.contains(line)).map(|line| format!("+ {line}"));
    gone.chain(come).collect::<Vec<_>>().join("\n")
}

/// A policy in words.
fn lines(policy: &EgressPolicy) -> Vec<String> {
    let mut lines = vec![format!("internet: {}", policy.internet.as_str())];
    lines.extend(observing(policy));
    lines.extend(policy.rules.iter().map(|rule| format!("rule: {rule}")));
    lines.extend(policy.inject.iter().map(|rule| format!("inject: {}", injection(rule))));
    let limits = policy.limits;
    lines.extend(limits.connections.map(|count| format!("connections: {count}")));
    lines.extend(limits.bytes_per_s.map(|bytes| format!("bandwidth: {}/s", format_bytes(bytes))));
    lines
}

/// The mode, where it is not the usual one.
fn observing(policy: &EgressPolicy) -> Option<String> {
    (policy.mode != EgressMode::default()).then(|| format!("mode: {}", policy.mode.as_str()))
}

/// An injection rule in words: for which requests, and what happens to them. Secrets are named, never shown.
fn injection(rule: &InjectRule) -> String {
    let join = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(",");
    let methods = if rule.methods.is_empty() { String::new() } else { rule.methods.join(",") + " " };
    let hosts = join(&mut rule.hosts.iter().map(ToString::to_string));
    let ports = match rule.ports.as_slice() {
        [] => String::new(),
        ports => format!(":{}", join(&mut ports.iter().map(ToString::to_string))),
    };
    let paths: String = rule.paths.iter().map(|path| format!(" {path}")).collect();
    let mut does: Vec<String> = Vec::new();
    let pair = |what: &str, (name, value): (&String, &atoll_core::policy::Template)| {
        format!("{what} {name}: {}", value.as_str())
    };
    does.extend(rule.headers.iter().map(|header| pair("header", header)));
    does.extend(rule.add_headers.iter().map(|header| pair("further header", header)));
    does.extend(rule.remove_headers.iter().map(|name| format!("no header {name}")));
    does.extend(rule.query.iter().map(|parameter| pair("query", parameter)));
    does.extend(rule.bearer.iter().map(|value| format!("bearer {}", value.as_str())));
    let basic = |both: &atoll_core::policy::BasicAuth| {
        format!("basic {}:{}", both.username.as_str(), both.password.as_str())
    };
    does.extend(rule.basic.iter().map(basic));
    does.extend(rule.placeholders.iter().map(|placeholder| match &placeholder.env {
        Some(variable) => format!("placeholder ${variable} of {}", placeholder.secret),
        None => format!("placeholder of {}", placeholder.secret),
    }));
    does.extend(rule.env.keys().map(|name| format!("variable ${name}")));
    does.extend(rule.mask_responses.then(|| "answers masked".to_owned()));
    does.extend(rule.allow_plaintext.then(|| "also in clear".to_owned()));
    format!("{}: {methods}{hosts}{ports}{paths} → {}", rule.name, does.join(", "))
}

async fn show(client: &Client, printer: Printer, sandbox: &str) -> Result<()> {
    let network = client.sandbox_network(sandbox).await?;
    let policy = client.get_sandbox(sandbox).await?.egress;
    printer.result(&network, || {
        let mut text = format!("internet: {}\n", policy.internet.as_str());
        text.extend(observing(&policy).map(|line| line + "\n"));
        for (index, rule) in policy.rules.iter().enumerate() {
            text.push_str(&format_rule(index, &rule.to_string()));
        }
        for rule in &policy.inject {
            text.push_str(&clean(&format!("inject {}\n", injection(rule))));
        }
        if !network.connections.is_empty() {
            let rows = network.connections.iter().map(|open| {
                let to = open.name.clone().unwrap_or_else(|| open.address.clone());
                [
                    open.protocol.clone(),
                    format!("{to}:{}", open.port),
                    open.address.clone(),
                    age(open.opened_at_ms),
                    format_bytes(open.sent_bytes),
                    format_bytes(open.received_bytes),
                ]
            });
            text.push('\n');
            text.push_str(&table(["OPEN", "TO", "ADDRESS", "SINCE", "SENT", "RECEIVED"], rows));
            text.push('\n');
        }
        let rows = network.totals.iter().map(|total| {
            [
                total.destination.clone(),
                total.connections.to_string(),
                format_bytes(total.sent_bytes),
                format_bytes(total.received_bytes),
            ]
        });
        text.push('\n');
        text.push_str(&table(["DESTINATION", "CONNECTIONS", "SENT", "RECEIVED"], rows));
        text
    })
}

fn format_rule(index: usize, rule: &str) -> String {
    format!("rule {}: {rule}\n", index + 1)
}

async fn denied(client: &Client, printer: Printer, sandbox: &str) -> Result<()> {
    let network = client.sandbox_network(sandbox).await?;
    printer.list(&network.denials, || {
        let rows = network.denials.iter().map(|denial| {
            let stage = match denial.stage {
                Stage::Dns => "lookup",
                Stage::Connect => "connection",
                Stage::Request => "request",
                Stage::Limit => "limit",
            };
            // Names and paths were chosen inside the sandbox.
            let (what, why) = (clean(&denial.what), clean(&denial.why));
            let why = if denial.observed { format!("would be refused: {why}") } else { why };
            let ask =
                clean(&denial.ask.as_deref().map_or_else(|| "-".to_owned(), |ask| allowing(sandbox, ask)));
            let last = format!("{} ago", age(denial.last_at_ms));
            [last, denial.count.to_string(), stage.to_owned(), what, why, ask]
        });
        table(["LAST", "TIMES", "AT", "WHAT", "WHY", "WOULD ALLOW IT"], rows)
    })
}

/// The command that would allow what was refused. The server says it in options of a new policy (`--allow NAME`), which for a
/// sandbox that has one would replace all of it.
fn allowing(sandbox: &str, ask: &str) -> String {
    match narrowest(ask) {
        Some((_, target)) => format!("atoll net allow {sandbox} {target}"),
        None => ask.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &[(Action, &str)]) -> EgressPolicy {
        EgressPolicy::only(
            rules.iter().flat_map(|(action, target)| net_rules(*action, target).unwrap()).collect(),
        )
    }

    fn allow(before: &EgressPolicy, target: &str) -> EgressPolicy {
        with(before, Action::Allow, net_rules(Action::Allow, target).unwrap()).unwrap()
    }

    #[test]
    fn rules_come_and_go_and_all_else_stays() {
        let mut before = policy(&[(Action::Allow, "a.example:443")]);
        before.inject.push(InjectRule { name: "key".into(), ..InjectRule::default() });
        before.limits.connections = Some(7);
        let more = allow(&before, "10.1.2.3:5432");
        assert_eq!(diff(&before, &more), "+ rule: allow 10.1.2.3:5432");
        assert_eq!((&more.inject, more.limits), (&before.inject, before.limits));
        assert_eq!(allow(&more, "10.1.2.3:5432"), more, "once is enough");
        let denied = with(&more, Action::Deny, net_rules(Action::Deny, "b.example").unwrap()).unwrap();
        assert_eq!(denied.rules[0].to_string(), "deny b.example");
        let rules = net_rules(Action::Allow, "10.1.2.3:5432").unwrap();
        assert_eq!(without(&more, &rules).unwrap(), before);
        assert!(without(&before, &rules).is_err());
    }

    #[test]
    fn what_would_allow_a_refusal_is_a_command_that_keeps_the_rest() {
        assert_eq!(allowing("dev", "--allow a.example"), "atoll net allow dev a.example");
        assert_eq!(allowing("dev", "--allow-cidr 10.1.2.3:443"), "atoll net allow dev 10.1.2.3:443");
        assert_eq!(
            allowing("dev", "--internet on, or --allow a.example:80"),
            "atoll net allow dev a.example:80"
        );
        assert_eq!(allowing("dev", "--internet on"), "--internet on");
    }

    #[test]
    fn a_preset_is_its_rules() {
        let before = policy(&[]);
        let more = allow(&before, "@pypi");
        assert_eq!(diff(&before, &more).lines().count(), 2);
        let rules = net_rules(Action::Allow, "@pypi").unwrap();
        assert_eq!(without(&more, &rules).unwrap(), before);
        // One of them was there under no name.
        let mixed = allow(&policy(&[(Action::Allow, "pypi.org:443")]), "@pypi");
        assert_eq!(mixed.rules.len(), 2);
    }

    #[test]
    fn a_sandbox_without_internet_gets_what_is_named_and_no_more() {
        let off = EgressPolicy { internet: Internet::Off, ..policy(&[(Action::Allow, "*")]) };
        let after = allow(&off, "a.example");
        assert_eq!(after, policy(&[(Action::Allow, "a.example")]));
        assert_eq!(
            diff(&off, &after),
            "- internet: off\n- rule: allow *\n+ internet: rules\n+ rule: allow a.example"
        );
        assert!(with(&off, Action::Deny, net_rules(Action::Deny, "a.example").unwrap()).is_err());
    }

    #[test]
    fn what_a_replaced_policy_lost_is_shown() {
        let rule: InjectRule = serde_json::from_value(serde_json::json!({
            "name": "api", "hosts": ["api.example"], "paths": ["/v1"], "headers": {"X-Key": "{secret:KEY}"},
            "placeholders": [{"secret": "KEY", "env": "API_KEY", "value": "atoll_secret_x1"}]}))
        .unwrap();
        let before = EgressPolicy { inject: vec![rule], ..policy(&[(Action::Allow, "api.example")]) };
        let after = policy(&[(Action::Allow, "10.0.0.1")]);
        let text = diff(&before, &after);
        assert!(
            text.contains(
                "- inject: api: api.example /v1 → header X-Key: {secret:KEY}, placeholder $API_KEY of KEY"
            ),
            "{text}"
        );
        assert!(
            text.contains("- rule: allow api.example") && text.contains("+ rule: allow 10.0.0.1"),
            "{text}"
        );
    }
}
