//! `atoll ssh`: the real `ssh`, told where and as whom; and the SSH keys of an API key.
//!
//! The key that logs in is made here, once for each server and API key, and registered each time. The host
//! key comes over the API, so `ssh` asks the user nothing, and no one between client and server has to be trusted.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use atoll_api::{CreateSshKey, SshInfo, SshKey};
use atoll_client::Client;
use atoll_core::{Code, Error};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::cli::{SshArgs, SshKeyCommand};
use crate::config;
use crate::failure::{Failure, Result};
use crate::output::{Printer, age, table, until};

/// Bytes of an SSH connection that are passed on at once, and how many such pieces may wait.
const PIECE_BYTES: usize = 32 << 10;
const PIECES_QUEUED: usize = 8;
/// Longest public key that is read, bytes.
const PUBLIC_KEY_MAX_BYTES: u64 = 16 << 10;
/// Name under which this program registers its own key.
const KEY_NAME: &str = "atoll ssh";

/// The key, the known hosts and the facts that `ssh` is given.
struct Identity {
    key: PathBuf,
    known_hosts: PathBuf,
    info: SshInfo,
}

/// `atoll ssh …`
pub(super) async fn ssh(client: &Client, printer: Printer, args: SshArgs) -> Result<u8> {
    let identity = prepare(client).await?;
    // A sandbox that is not there is said here, in better words than a refused login.
    let sandbox = client.get_sandbox(&args.sandbox).await?;
    let name = sandbox.name.unwrap_or(sandbox.id);
    let login = args.user.map_or_else(|| name.clone(), |user| format!("{name}+{user}"));
    let options = options(client, &identity)?;
    if args.print_config {
        let lines: Vec<String> = options.iter().map(|(key, value)| format!("  {key} {value}")).collect();
        let text = format!("Host {name}\n  User {login}\n{}", lines.join("\n"));
        return printer.result(&text, || text.clone()).map(|()| 0);
    }
    let mut command = Command::new("ssh");
    for (key, value) in &options {
        command.arg("-o").arg(format!("{key}={value}"));
    }
    command.args(["-l", &login]).arg(&name);
    // As ssh itself has it: words of a command are joined by spaces.
    if !args.command.is_empty() {
        command.arg("--").args(&args.command);
    }
    let status = command.status().await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::Plain(
            Error::new(Code::CommandNotFound, "there is no 'ssh' on this machine")
                .hint("install an OpenSSH client, or use 'atoll shell'"),
        ),
        _ => Failure::io("cannot start ssh", error),
    })?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(255))
}

/// `atoll ssh-proxy`: the bytes of an SSH connection on standard input and output, for `ProxyCommand`.
pub(super) async fn proxy(client: &Client) -> Result<()> {
    // A configuration written once outlives the server's key, and the registration of ours.
    prepare(client).await?;
    let (mut from_server, mut to_server) = tokio::io::split(client.ssh_connect().await?);
    let (typed, mut input) = mpsc::channel::<Vec<u8>>(PIECES_QUEUED);
    let (output, mut shown) = mpsc::channel::<Vec<u8>>(PIECES_QUEUED);
    // Reads and writes of standard streams block: each has a thread, which ends with the process.
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(len @ 1..) = std::io::stdin().read(&mut buffer) {
            if typed.blocking_send(buffer[..len].to_vec()).is_err() {
                return;
            }
        }
    });
    let writing = std::thread::spawn(move || {
        let mut stdout = std::io::stdout();
        while let Some(piece) = shown.blocking_recv() {
            if stdout.write_all(&piece).and_then(|()| stdout.flush()).is_err() {
                return;
            }
        }
    });
    let up = async {
        while let Some(piece) = input.recv().await {
            to_server.write_all(&piece).await?;
            to_server.flush().await?;
        }
        to_server.shutdown().await
    };
    let mut down = Box::pin(async move {
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(len @ 1..) = from_server.read(&mut buffer).await {
            if output.send(buffer[..len].to_vec()).await.is_err() {
                return;
            }
        }
    });
    // Either side ends it; ssh says what is wrong.
    tokio::select! {
        () = &mut down => {}
        ended = up => if ended.is_ok() { (&mut down).await },
    }
    // And with it the way to the writing thread.
    drop(down);
    drop(tokio::task::spawn_blocking(move || writing.join()).await);
    Ok(())
}

/// Options for `ssh`, in the words of its configuration.
fn options(client: &Client, identity: &Identity) -> Result<Vec<(&'static str, String)>> {
    let program = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", error))?;
    let quoted = |path: &Path| format!("\"{}\"", path.display());
    // Over the same way as every call, so that it works through every proxy between here and the server. The
    // key is in the configuration or the environment, as for this command.
    let proxy = format!("{} --url {} ssh-proxy", quoted(&program), client.url());
    Ok(vec![
        ("ProxyCommand", proxy),
        ("IdentityFile", quoted(&identity.key)),
        ("IdentitiesOnly", "yes".to_owned()),
        ("PreferredAuthentications", "publickey".to_owned()),
        ("HostKeyAlias", identity.info.host_key_alias.clone()),
        ("UserKnownHostsFile", quoted(&identity.known_hosts)),
        ("StrictHostKeyChecking", "yes".to_owned()),
        ("LogLevel", "ERROR".to_owned()),
    ])
}

/// Makes sure that there are a key and the server's host key, and that the server knows the key.
async fn prepare(client: &Client) -> Result<Identity> {
    let info = client.ssh_info().await?;
    let dir = config::state_dir()
        .ok_or_else(|| {
            Failure::plain(Code::InvalidArgument, "there is no home directory to keep an SSH key in")
        })?
        .join("ssh");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|error| Failure::io(format!("cannot make {}", dir.display()), error))?;
    let key = dir.join(format!("id_ed25519-{:016x}", client.identity()));
    if !key.try_exists().map_err(|error| Failure::io(format!("cannot look at {}", key.display()), error))? {
        make_key(&key).await?;
    }
    let public_key = read(&key.with_extension("pub"))?;
    client.add_ssh_key(&CreateSshKey { name: KEY_NAME.to_owned(), public_key, ttl_ms: None }).await?;
    let known_hosts = dir.join(format!("known_hosts-{}", info.host_key_alias));
    let line = format!("{} {}\n", info.host_key_alias, info.host_key);
    // Other `ssh` processes may be reading it: it is replaced as a whole, and only when its content changes.
    if std::fs::read_to_string(&known_hosts).ok().as_ref() != Some(&line) {
        let written = tempfile::NamedTempFile::new_in(&dir).and_then(|mut file| {
            file.write_all(line.as_bytes())?;
            file.persist(&known_hosts).map_err(|error| error.error)
        });
        written.map_err(|error| Failure::io(format!("cannot write {}", known_hosts.display()), error))?;
    }
    Ok(Identity { key, known_hosts, info })
}

async fn make_key(path: &Path) -> Result<()> {
    let status = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", KEY_NAME, "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .status()
        .await
        .map_err(|error| Failure::io("cannot start ssh-keygen", error))?;
    if status.success() { Ok(()) } else { Err(Failure::plain(Code::Internal, "ssh-keygen made no key")) }
}

/// `atoll ssh-key …`
pub(super) async fn ssh_key(client: &Client, printer: Printer, command: SshKeyCommand) -> Result<()> {
    match command {
        SshKeyCommand::Add { ttl, name, file } => {
            let public_key =
                if file == Path::new("-") { read_from(std::io::stdin(), &file)? } else { read(&file)? };
            let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            let name = name.or(stem).unwrap_or_else(|| "ssh key".to_owned());
            let key = client.add_ssh_key(&CreateSshKey { name, public_key, ttl_ms: ttl }).await?;
            printer.result(&key, || format!("{} {}", key.id, key.fingerprint))
        }
        SshKeyCommand::Ls => {
            let list = client.list_ssh_keys().await?;
            printer.result(&list, || {
                table(["ID", "NAME", "FINGERPRINT", "API KEY", "AGE", "ENDS"], list.items.iter().map(row))
            })
        }
        SshKeyCommand::Rm { keys } => {
            for key in &keys {
                client.remove_ssh_key(key).await?;
            }
            printer.removed(&keys)
        }
    }
}

fn read(path: &Path) -> Result<String> {
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?;
    read_from(file, path)
}

fn read_from(from: impl std::io::Read, path: &Path) -> Result<String> {
    let mut text = String::new();
    from.take(PUBLIC_KEY_MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?;
    Ok(text.trim().to_owned())
}

fn row(key: &SshKey) -> [String; 6] {
    [
        key.id.clone(),
        key.name.clone(),
        key.fingerprint.clone(),
        key.owner.clone(),
        age(key.created_at_ms),
        until(key.expires_at_ms),
    ]
}
