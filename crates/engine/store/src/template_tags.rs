//! Tags of templates in the database: names for versions.

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args};
use crate::error::StoreError;
use crate::listed::{Table, Which};

use atoll_core::limits::TAG_ASSIGNMENTS_MAX_COUNT;

const TABLE: &str = "template_tags";
const LIST: Table = Table::new(TABLE, "tag");

/// A name for one version of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateTag {
    /// The tag.
    pub tag: String,
    /// The version that it means.
    pub version: u32,
    /// When it was pointed there.
    pub set_ms: u64,
}

impl Store {
    /// Points tags to a version of a template, wherever they pointed before: all or none.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is no such version.
    pub async fn tag_template(
        &self,
        name: &str,
        version: u32,
        tags: &[String],
        set_ms: u64,
    ) -> Result<(), StoreError> {
        const THERE: &str = "SELECT version FROM templates WHERE name = $1 AND version = $2";
        let (name, tags) = (name.to_owned(), tags.to_vec());
        self.write(move |mut conn| {
            Box::pin(async move {
                if conn.row(THERE, args![name.as_str(), version]).await?.is_none() {
                    return Err(StoreError::NotFound);
                }
                set(conn, &name, version, &tags, set_ms).await
            })
        })
        .await
    }

    /// The tags of a template, by name.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn template_tags(&self, name: &str) -> Result<Vec<TemplateTag>, StoreError> {
        const SQL: &str = "SELECT tag, version, set_ms FROM template_tags WHERE name = $1 ORDER BY tag";
        self.list(&LIST, Which::Some, SQL, args![name], read).await
    }

    /// The versions that the tags of a template have meant, by tag name; of each tag the newest first, which is what it
    /// means now.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn template_tag_assignments(&self, name: &str) -> Result<Vec<TemplateTag>, StoreError> {
        // Only tags that are there: a tag that went with its version may have meant other versions before.
        const SQL: &str = "SELECT tag, version, set_ms FROM template_tag_assignments WHERE name = $1 \
             AND tag IN (SELECT tag FROM template_tags WHERE name = $1) ORDER BY tag, number DESC";
        self.list(&LIST, Which::Some, SQL, args![name], read).await
    }

    /// The version that a tag of a template means.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn tagged_version(&self, name: &str, tag: &str) -> Result<Option<u32>, StoreError> {
        const SQL: &str = "SELECT tag, version, set_ms FROM template_tags WHERE name = $1 AND tag = $2";
        let values = args![name, tag];
        let row = self.read(move |mut conn| Box::pin(async move { conn.row(SQL, values).await })).await?;
        Ok(row.map(|row| row.decode(TABLE, "tag", read)).transpose()?.map(|tag| tag.version))
    }

    /// Removes tags of a template, and what they have meant: all or none. The versions stay.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when it does not have one of them.
    pub async fn untag_template(&self, name: &str, tags: &[String]) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM template_tags WHERE name = $1 AND tag = $2";
        const PAST: &str = "DELETE FROM template_tag_assignments WHERE name = $1 AND tag = $2";
        let (name, tags) = (name.to_owned(), tags.to_vec());
        self.write(move |mut conn| {
            Box::pin(async move {
                for tag in &tags {
                    if conn.execute(SQL, args![name.as_str(), tag.as_str()]).await? == 0 {
                        return Err(StoreError::NotFound);
                    }
                    conn.execute(PAST, args![name.as_str(), tag.as_str()]).await?;
                }
                Ok(())
            })
        })
        .await
    }
}

/// Points tags to a version that is there.
pub(crate) async fn set(
    mut conn: Conn<'_>,
    name: &str,
    version: u32,
    tags: &[String],
    set_ms: u64,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO template_tags (name, tag, version, set_ms) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (name, tag) DO UPDATE SET version = excluded.version, set_ms = excluded.set_ms";
    const LAST: &str =
        "SELECT MAX(number) AS number FROM template_tag_assignments WHERE name = $1 AND tag = $2";
    const REMEMBER: &str = "INSERT INTO template_tag_assignments (name, tag, number, version, set_ms) \
         VALUES ($1, $2, $3, $4, $5)";
    const FORGET: &str = "DELETE FROM template_tag_assignments WHERE name = $1 AND tag = $2 AND number <= $3";
    const MAX: i64 = TAG_ASSIGNMENTS_MAX_COUNT as i64;
    for tag in tags {
        let tag = tag.as_str();
        // First this, which holds the tag until the end of the transaction.
        conn.execute(SQL, args![name, tag, version, set_ms]).await?;
        let last = conn.row(LAST, args![name, tag]).await?;
        let last = last.map(|row| row.decode(TABLE, "tag", |row| row.int_opt("number"))).transpose()?;
        let number = last.flatten().unwrap_or_default() + 1;
        conn.execute(REMEMBER, args![name, tag, number, version, set_ms]).await?;
        conn.execute(FORGET, args![name, tag, number - MAX]).await?;
    }
    Ok(())
}

fn read(row: &Row) -> Result<TemplateTag, BadColumn> {
    Ok(TemplateTag {
        tag: row.text("tag")?,
        version: u32::try_from(row.int("version")?).or(Err("version"))?,
        set_ms: row.uint("set_ms")?,
    })
}
