//! Arguments that name what the nodes of a cluster share.

use clap::Args;

/// Database and bucket.
#[derive(Debug, Clone, Args)]
pub(crate) struct SharedArgs {
    /// What the nodes of a cluster share, instead of a data directory: database, and bucket if there is one. They may go on
    #[arg(long, conflicts_with = "data_dir")]
    pub(crate) cluster: bool,
    /// The database, postgres://user:password@host/database [env: ATOLL_DATABASE]
    #[arg(long, value_name = "URL", requires = "cluster")]
    pub(crate) database: Option<String>,
    /// The bucket, s3://bucket or s3://bucket/prefix
    #[arg(long, value_name = "URL", requires = "cluster")]
    pub(crate) objects: Option<String>,
    /// Its server, for all but Amazon's own [env: AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL", requires = "objects")]
    pub(crate) objects_endpoint: Option<String>,
    /// Its region [env: AWS_REGION]
    #[arg(long, value_name = "NAME", requires = "objects")]
    pub(crate) objects_region: Option<String>,
}
