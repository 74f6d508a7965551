//! Templates in the database.

use crate::Store;
use crate::db::{BadColumn, Conn, Row, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::TemplateRecord;

/// Version of the JSON form of a template's spec.
const SPEC_VERSION: i64 = 1;
const TABLE: &str = "templates";
const LIST: Table = Table::new(TABLE, "id").named("name");

impl Store {
    /// Stores a template as the next version of its name; gives that version. The record's own
    /// `version` is ignored.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] for the id.
    pub async fn insert_template(&self, template: &TemplateRecord) -> Result<u32, StoreError> {
        let template = template.clone();
        self.write(move |conn| Box::pin(insert(conn, template))).await
    }

    /// One version of a template, or the newest that is there when `version` is `None`.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when its row cannot be read.
    pub async fn template(
        &self,
        name: &str,
        version: Option<u32>,
    ) -> Result<Option<TemplateRecord>, StoreError> {
        const NEWEST: &str = "SELECT * FROM templates WHERE name = $1 ORDER BY version DESC LIMIT 1";
        const EXACT: &str = "SELECT * FROM templates WHERE name = $1 AND version = $2";
        let (sql, values) = match version {
            None => (NEWEST, args![name]),
            Some(version) => (EXACT, args![name, version]),
        };
        self.read(move |mut conn| {
            Box::pin(async move { conn.row(sql, values).await?.map(decode).transpose() })
        })
        .await
    }

    /// Every template in every version, by name, the newest version first; of one name if given.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_templates(&self, name: Option<&str>) -> Result<Vec<TemplateRecord>, StoreError> {
        const ALL: &str = "SELECT * FROM templates ORDER BY name, version DESC";
        const ONE: &str = "SELECT * FROM templates WHERE name = $1 ORDER BY version DESC";
        match name {
            None => self.list(&LIST, Which::All, ALL, Vec::new(), read).await,
            Some(name) => self.list(&LIST, Which::Some, ONE, args![name], read).await,
        }
    }

    /// Removes one version of a template, or all of them; says how many were there. Their numbers
    /// are not given out again.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_template(&self, name: &str, version: Option<u32>) -> Result<u64, StoreError> {
        const ALL: &str = "DELETE FROM templates WHERE name = $1";
        const EXACT: &str = "DELETE FROM templates WHERE name = $1 AND version = $2";
        let (sql, values) = match version {
            None => (ALL, args![name]),
            Some(version) => (EXACT, args![name, version]),
        };
        self.write(move |mut conn| Box::pin(async move { conn.execute(sql, values).await })).await
    }
}

/// Inserts a template as the next version of its name.
pub(crate) async fn insert(mut conn: Conn<'_>, template: TemplateRecord) -> Result<u32, StoreError> {
    // Taking the number locks the name's row in PostgreSQL, so two insertions come one after the other.
    const NUMBER: &str = "INSERT INTO template_names (name, last_version) VALUES ($1, 1) ON CONFLICT (name) \
         DO UPDATE SET last_version = template_names.last_version + 1 RETURNING name, last_version";
    const INSERT: &str = "INSERT INTO templates (id, name, version, spec, spec_version, created_ms, \
         created_by) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let row = conn.row(NUMBER, args![template.name.as_str()]).await?.ok_or(StoreError::Conflict)?;
    let version = row.decode("template_names", "name", |row| {
        u32::try_from(row.int("last_version")?).or(Err("last_version"))
    })?;
    let values = args![
        template.id.as_str(),
        template.name.as_str(),
        version,
        json(&template.spec)?,
        SPEC_VERSION,
        template.created_ms,
        template.created_by.as_ref().map(|key| key.as_str()),
    ];
    conn.execute(INSERT, values).await?;
    Ok(version)
}

#[expect(clippy::needless_pass_by_value, reason = "fits map over rows")]
fn decode(row: Row) -> Result<TemplateRecord, StoreError> {
    row.decode(TABLE, "id", read)
}

fn read(row: &Row) -> Result<TemplateRecord, BadColumn> {
    Ok(TemplateRecord {
        id: row.parse("id")?,
        name: row.text("name")?,
        version: u32::try_from(row.int("version")?).or(Err("version"))?,
        spec: row.spec(SPEC_VERSION)?,
        created_ms: row.uint("created_ms")?,
        created_by: row.parse_opt("created_by")?,
    })
}
