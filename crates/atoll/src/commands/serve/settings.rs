//! What the arguments of `atoll serve` mean: the settings of the engine, and of the server where they take more than a word.
//! Files that the arguments name are read here, and what cannot be meant is refused before anything is started.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_core::person::{RULES_MAX_COUNT, Rules};
use atoll_core::policy::EgressPolicy;
use atoll_core::secret::Secret;
use atoll_core::spec::{self, Defaults};
use atoll_core::{Code, Error};
use atoll_egress::{GatewayConfig, UpstreamProxy};
use atoll_engine::{EgressConfig, People, PoolConfig};
use atoll_image::Reach;
use atoll_isolation_storage::PoolSize;
use atoll_objects::{Objects, ObjectsConfig};
use atoll_oidc::{Issuer, IssuerConfig};
use atoll_server::PeopleConfig;

use super::certificate;
use crate::cli::{self, LOCALHOST, OidcArgs, ServeArgs};
use crate::config::{self, VaultKey};
use crate::daemon::{HOSTS, Limits, Machines, NodeSettings, Sentries};
use crate::failure::{Failure, Result};

/// How long a command may take that gives the vault's key.
const VAULT_KEY_TIMEOUT: Duration = Duration::from_secs(60);

/// The engine's settings. `node` are those of a node, if the database may be shared with some.
pub(super) async fn limits(args: &ServeArgs, node: Option<NodeSettings>) -> Result<Limits> {
    let pool_memory = args.pool_memory.map_or_else(half_of_memory, Ok)?;
    for (image, spec) in &args.pool {
        let field = format!("--pool {image}");
        spec.validate(&field).and_then(|()| spec.fits(0, 0, pool_memory)).map_err(Failure::Plain)?;
    }
    Ok(Limits {
        sandboxes_max: args.sandboxes_max,
        ready: args.ready,
        pools: PoolConfig {
            memory_bytes: pool_memory,
            images: args.pool.clone(),
            by_demand_max: args.pool_demand,
            ..PoolConfig::default()
        },
        defaults: defaults(args)?,
        egress: egress(args)?,
        vault_key: vault_key(args).await?,
        upstream_ca: upstream_ca(args)?,
        registries: Reach::new(args.registry_allow.clone()),
        visibility: args.visibility,
        people: people(&args.oidc)?,
        trace: args.trace.trace,
        trace_keep: args.trace.retention(),
        objects: objects(args)?,
        storage: args.storage_size.map_or(PoolSize::Host, PoolSize::Bytes),
        reclaim_below_bytes: args.reclaim_below,
        logs_max_bytes: args.logs_size,
        images_max_bytes: args.images_size,
        machines: Some(Machines::new(&args.data_dir, &args.microvm)),
        sentries: Some(Sentries::new(&args.gvisor)),
        own_names: (args.tls.tls || args.acme.acme).then(|| certificate::own_names(args)),
        node,
    })
}

/// Names of the server itself, besides `localhost` and addresses.
pub(super) fn names(args: &ServeArgs) -> Vec<String> {
    let mut names = args.host.clone();
    if args.domain != LOCALHOST {
        names.extend([args.domain.clone(), format!("api.{}", args.domain)]);
    }
    names
}

/// Half of the host's memory, bytes.
fn half_of_memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")
        .map_err(|error| Failure::io("cannot read /proc/meminfo", error))?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let kib: Option<u64> = total.and_then(|text| text.parse().ok());
    kib.map(|kib| kib * 1024 / 2).ok_or_else(|| {
        Failure::plain(
            Code::Internal,
            "/proc/meminfo does not say how much memory there is: give --pool-memory",
        )
    })
}

/// The vault's key, where it does not come from the data directory: the output of a command, else variables.
async fn vault_key(args: &ServeArgs) -> Result<Option<VaultKey>> {
    let Some(line) = &args.vault_key_command else { return config::vault_key() };
    let failed = |error| Failure::io("--vault-key-command cannot be run", error);
    let mut command = tokio::process::Command::new("/bin/sh");
    command.arg("-c").arg(line).stdin(std::process::Stdio::null()).stderr(std::process::Stdio::inherit());
    let output = tokio::time::timeout(VAULT_KEY_TIMEOUT, command.kill_on_drop(true).output()).await;
    let output = output
        .map_err(|_late| Failure::plain(Code::Timeout, "--vault-key-command took longer than a minute"))?
        .map_err(failed)?;
    let text = zeroize::Zeroizing::new(output.stdout);
    let text = std::str::from_utf8(&text).unwrap_or_default();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(Secret::new);
    match lines.next() {
        Some(current) if output.status.success() => Ok(Some(VaultKey { current, previous: lines.next() })),
        _ => Err(Failure::plain(Code::InvalidArgument, "--vault-key-command gave no key")),
    }
}

/// Authorities for servers outside.
fn upstream_ca(args: &ServeArgs) -> Result<String> {
    let mut all = String::new();
    for path in &args.upstream_ca {
        let what = || format!("cannot read {}", path.display());
        all.push_str(&std::fs::read_to_string(path).map_err(|error| Failure::io(what(), error))?);
        all.push('\n');
    }
    Ok(all)
}

/// Who may log in.
fn people(args: &OidcArgs) -> Result<People> {
    if args.oidc_allow.len() > RULES_MAX_COUNT {
        return Err(Failure::Usage(format!("--oidc-allow: at most {RULES_MAX_COUNT} times")));
    }
    let rules = Rules::new(args.oidc_issuer.clone().unwrap_or_default(), args.oidc_allow.clone());
    Ok(People { rules, login_ms: args.oidc_login })
}

/// Where people log in.
pub(super) fn issuer(args: &OidcArgs) -> Result<Option<PeopleConfig>> {
    let Some((url, client_id)) = args.oidc_issuer.clone().zip(args.oidc_client_id.clone()) else {
        return Ok(None);
    };
    let secret = args.oidc_client_secret_file.as_deref().map(config::secret_file).transpose()?;
    let scopes = if args.oidc_scope.is_empty() { vec!["email".to_owned()] } else { args.oidc_scope.clone() };
    let mut claims: Vec<_> = args.oidc_allow.iter().map(|rule| rule.claim().to_owned()).collect();
    claims.sort();
    claims.dedup();
    let issuer = Issuer::new(IssuerConfig { url, client_id, client_secret: secret, scopes, claims });
    let issuer = issuer.map_err(|error| Failure::Usage(format!("--oidc-issuer: {error}")))?;
    let name = args.oidc_name.clone().unwrap_or_else(|| issuer.host().to_owned());
    Ok(Some(PeopleConfig { issuer: Arc::new(issuer), name }))
}

/// Properties of a sandbox whose request does not set them.
fn defaults(args: &ServeArgs) -> Result<Defaults> {
    if args.default_image != "host" {
        spec::image_reference("--default-image", &args.default_image).map_err(Failure::Plain)?;
    }
    Ok(Defaults { image: args.default_image.clone(), isolation: args.default_isolation })
}

/// What the server lets sandboxes reach, and how.
fn egress(args: &ServeArgs) -> Result<EgressConfig> {
    let default_policy = match args.default_egress.as_str() {
        "off" => EgressPolicy::default(),
        "on" => EgressPolicy::open(),
        file => cli::read_policy(Path::new(file))?,
    };
    default_policy.validate("default-egress").map_err(Failure::Plain)?;
    let upstream = match &args.egress_proxy {
        Some(proxy) => Some(proxy.clone()),
        None => config::egress_proxy()?,
    };
    let upstream = upstream
        .map(|text| {
            text.parse::<UpstreamProxy>().map_err(|why| Failure::Usage(format!("--egress-proxy: {why}")))
        })
        .transpose()?;
    let public = args.public_url.as_ref().map(|url| url.host().to_owned());
    let own_hosts = public.into_iter().chain([args.domain.clone()]).chain(names(args));
    let gateway = GatewayConfig {
        resolvers: args.resolver.clone(),
        hosts_file: hosts_file(args),
        upstream,
        closed: args.closed_cidr.clone(),
        own_hosts: own_hosts.collect(),
        ..GatewayConfig::default()
    };
    Ok(EgressConfig { default_policy, gateway })
}

/// The list of names that come before what resolvers say: the host's, unless its resolvers are not wanted either.
fn hosts_file(args: &ServeArgs) -> Option<PathBuf> {
    args.hosts_file.clone().or_else(|| args.resolver.is_empty().then(|| PathBuf::from(HOSTS)))
}

/// The object store, if one is named.
fn objects(args: &ServeArgs) -> Result<Option<Objects>> {
    let Some(url) = &args.objects else { return Ok(None) };
    open_objects(url, args.objects_endpoint.clone(), args.objects_region.clone()).map(Some)
}

/// The object store of this address, with the credentials of the environment.
pub(in crate::commands) fn open_objects(
    url: &str,
    endpoint: Option<String>,
    region: Option<String>,
) -> Result<Objects> {
    let aws = config::aws()?;
    let config = ObjectsConfig {
        url: url.to_owned(),
        endpoint: endpoint.or(aws.endpoint),
        region: region.or(aws.region),
        credentials: aws.credentials,
        token: aws.token,
    };
    Objects::open(&config).map_err(|error| {
        Failure::Plain(
            Error::new(Code::InvalidArgument, format!("--objects: {}", crate::failure::chain(&error))).hint(
                "write s3://bucket or s3://bucket/prefix, and --objects-endpoint for all but Amazon's own",
            ),
        )
    })
}
