//! Steering without BPF: `nft` rules in the slot's own network namespace. Slower to make (some
//! milliseconds, in the background) and never seen by the host's own tables.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::{OWN_ADDRESS, RESOLVER_ADDRESS};

/// Installs the rules in this thread's network namespace, in place of those that an earlier gate left there: TCP to
/// anywhere but the sandbox itself goes to `port`; traffic that is neither TCP or ICMP nor for the resolver is refused.
///
/// # Errors
/// When there is no `nft`, or it refuses.
pub(crate) fn install(port: u16) -> io::Result<()> {
    // A child is in the namespace of the thread that starts it.
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(rules(port).as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("nft: {}", text.lines().next().unwrap_or("failed"))))
}

fn rules(port: u16) -> String {
    // The table is added first, so that it can be deleted whether it was there or not; all of it happens at once.
    // Traffic is refused on input, so that the program that sent it gets the error.
    format!(
        "table ip atoll
delete table ip atoll
table ip atoll {{
  chain out {{
    type nat hook output priority -100;
    ip daddr {{ 127.0.0.0/8, {OWN_ADDRESS} }} return
    meta l4proto tcp redirect to :{port}
  }}
  chain refuse {{
    type filter hook input priority 0;
    ip daddr {{ 127.0.0.0/8, {OWN_ADDRESS} }} accept
    meta l4proto {{ tcp, icmp }} accept
    ip daddr {RESOLVER_ADDRESS} udp dport 53 accept
    reject
  }}
}}
"
    )
}
