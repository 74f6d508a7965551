//! Arguments about secrets.

use atoll_core::policy::DomainPattern;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Store a secret, or a new value of one. The value is asked for, or read from standard input
    Set(SetSecretArgs),
    /// List secrets; values are never shown
    Ls {
        /// Those of this project, by id or name
        #[arg(long, value_name = "PROJECT")]
        project: Option<String>,
    },
    /// Remove secrets; rules that name them fail from then on
    Rm {
        /// Names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Those of this project, by id or name
        #[arg(long, value_name = "PROJECT")]
        project: Option<String>,
    },
    /// Show who used a secret, when, and where it went
    Audit {
        /// Only this secret
        name: Option<String>,
        /// Only this sandbox, by id or name
        #[arg(long, value_name = "SANDBOX")]
        sandbox: Option<String>,
        /// At most this many, the newest
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: u32,
    },
    /// Change the vault's key: everything is sealed anew, then the old key is forgotten
    RotateKey,
}

#[derive(Debug, Args)]
pub(crate) struct SetSecretArgs {
    /// Name, such as OPENAI_API_KEY
    pub(crate) name: String,
    /// The project whose secret it is, by id or name
    #[arg(long, value_name = "PROJECT")]
    pub(crate) project: Option<String>,
    /// Host that may receive it, such as api.openai.com or *.example.com (repeatable)
    #[arg(long, value_name = "HOST", conflicts_with = "any_host")]
    pub(crate) host: Vec<DomainPattern>,
    /// Any host may receive it that a rule names
    #[arg(long)]
    pub(crate) any_host: bool,
    /// Only for sandboxes of this template (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Vec<String>,
    /// Only for this sandbox, by id or name (repeatable)
    #[arg(long, value_name = "SANDBOX")]
    pub(crate) sandbox: Vec<String>,
    /// Only for sandboxes that this API key made, by id (repeatable)
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Vec<atoll_core::id::KeyId>,
    /// For every sandbox again, in place of what --template, --sandbox and --key once said
    #[arg(long, conflicts_with_all = ["template", "sandbox", "key"])]
    pub(crate) any_sandbox: bool,
    /// What people should know about it
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Keep the value: change only where it may go, or the note
    #[arg(long)]
    pub(crate) keep_value: bool,
}
