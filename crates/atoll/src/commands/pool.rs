//! Warm pools.

use atoll_api::{Pool, PoolList, PoolOrigin, PutPool};
use atoll_client::Client;

use crate::cli::{PoolCommand, PoolOf};
use crate::failure::Result;
use crate::output::{Printer, table};
use crate::units::{format_bytes, format_duration_ms};

/// `atoll pool …`
pub(super) async fn pool(client: &Client, printer: Printer, command: PoolCommand) -> Result<()> {
    match command {
        PoolCommand::Ls => {
            let list = client.list_pools().await?;
            printer.result(&list, || text(&list))?;
            for pool in &list.items {
                if let Some(problem) = &pool.problem {
                    printer.warn(&format!("the pool of {} cannot be filled: {problem}", of(pool)));
                }
            }
            Ok(())
        }
        PoolCommand::Set { of: PoolOf { template, image }, min, max, max_age } => {
            let put = PutPool { template, image, min, max: max.unwrap_or(min), max_age_ms: max_age };
            let pool = client.put_pool(&put).await?;
            printer.result(&pool, || format!("{}: {} to {}", of(&pool), pool.min, pool.max))
        }
        PoolCommand::Rm { of } => {
            client.delete_pool(of.template.as_deref(), of.image.as_deref()).await?;
            printer.removed(&[of.template.or(of.image)])
        }
    }
}

fn text(list: &PoolList) -> String {
    if list.items.is_empty() {
        return String::new();
    }
    let header = ["OF", "MIN", "MAX", "READY", "MAKING", "TARGET", "HITS", "OLDEST", "EACH"];
    let rows = table(header, list.items.iter().map(row));
    let used = format_bytes(list.memory_bytes);
    format!("{rows}\n\nmemory: {used} of {}", format_bytes(list.memory_max_bytes))
}

fn of(pool: &Pool) -> String {
    let of = match (&pool.template, &pool.image) {
        (Some(template), _) => {
            let version = pool.version.map(|version| format!(":{version}")).unwrap_or_default();
            format!("template {template}{version}")
        }
        (None, Some(image)) => format!("image {image}"),
        (None, None) => "?".to_owned(),
    };
    if pool.origin == PoolOrigin::Demand { format!("{of}, by demand") } else { of }
}

fn row(pool: &Pool) -> [String; 9] {
    let asked = pool.hits.saturating_add(pool.misses);
    let hits = pool.hits.saturating_mul(100).checked_div(asked);
    [
        of(pool),
        pool.min.to_string(),
        pool.max.to_string(),
        pool.ready.to_string(),
        pool.making.to_string(),
        pool.target.to_string(),
        hits.map_or_else(|| "-".to_owned(), |percent| format!("{percent}% of {asked}")),
        pool.oldest_age_ms.map_or_else(|| "-".to_owned(), format_duration_ms),
        if pool.member_bytes == 0 { "-".to_owned() } else { format_bytes(pool.member_bytes) },
    ]
}
