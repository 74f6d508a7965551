//! API keys in the database: hashes only.

use atoll_core::id::{KeyId, ProjectId};
use atoll_core::person::Person;

use crate::Store;
use crate::db::{BadColumn, Conn, Row, Value, args, json};
use crate::error::StoreError;
use crate::listed::{Table, Which};
use crate::record::{KeyKind, KeyRecord, Login, LoginBy};

const TABLE: Table = Table::new("api_keys", "id").named("name").of("project");
const INSERT: &str = "INSERT INTO api_keys (id, name, hash, scopes, created_ms, expires_ms, last_used_ms, \
     person, login_of, login_by, login_exchange, project, project_scope) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, \
     $10, $11, $12, $13)";
/// The same for a person, who may have a record already: its id stays. The record keeps the later of the two end times,
/// so a shorter login ends no other login.
const PERSON: &str = "INSERT INTO api_keys (id, name, hash, scopes, created_ms, expires_ms, last_used_ms, \
     person, login_of, login_by, login_exchange, project, project_scope) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, \
     $10, $11, $12, $13) \
     ON CONFLICT (hash) DO UPDATE SET name = EXCLUDED.name, person = EXCLUDED.person, expires_ms = CASE \
     WHEN api_keys.expires_ms > EXCLUDED.expires_ms THEN api_keys.expires_ms ELSE EXCLUDED.expires_ms END RETURNING *";

impl Store {
    /// Stores a new key.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] for the id or the hash; [`StoreError::NotFound`] when its project is gone.
    pub async fn insert_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        let values = values(key)?;
        self.change_keys(INSERT, values).await.map(drop)
    }

    /// Stores a login, and what is known of the person now, also in the records that they have in other projects.
    /// Gives the person's record, which has the id that it had before. Removes those of their logins that have
    /// expired, and the oldest beyond `logins_max`.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when a login was opened by the same exchange.
    pub async fn log_in(
        &self,
        person: &KeyRecord,
        login: &KeyRecord,
        logins_max: u64,
    ) -> Result<KeyRecord, StoreError> {
        const RAN_OUT: &str = "DELETE FROM api_keys WHERE login_of = $1 AND expires_ms <= $2";
        const OLDEST: &str = "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys WHERE login_of = $1 \
             ORDER BY created_ms DESC, id DESC LIMIT 1000 OFFSET $2)";
        let of_person = values(person)?;
        let (login, now) = (login.clone(), login.created_ms);
        self.write(move |mut conn| {
            Box::pin(async move {
                let rows = conn.rows(PERSON, of_person).await?;
                let row = rows.first().ok_or(StoreError::Conflict)?;
                let person: KeyRecord = row.decode("api_keys", "id", read)?;
                renew_others(&mut conn, &person).await?;
                let login = match login.kind {
                    KeyKind::Login(of) => {
                        KeyRecord { kind: KeyKind::Login(Login { person: person.id.clone(), ..of }), ..login }
                    }
                    KeyKind::Key | KeyKind::Person(_) => return Err(StoreError::Conflict),
                };
                conn.execute(RAN_OUT, args![person.id.as_str(), now]).await?;
                conn.execute(OLDEST, args![person.id.as_str(), logins_max.saturating_sub(1)]).await?;
                conn.execute(INSERT, values(&login)?).await?;
                Ok(person)
            })
        })
        .await
    }

    /// Ends one login of a person, or all of them. The person's record then expires with the last login that is left.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn end_logins(
        &self,
        person: &KeyId,
        login: Option<&KeyId>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        const ONE: &str = "DELETE FROM api_keys WHERE login_of = $1 AND id = $2";
        const ALL: &str = "DELETE FROM api_keys WHERE login_of = $1";
        const LEFT: &str = "UPDATE api_keys SET expires_ms = COALESCE((SELECT MAX(other.expires_ms) FROM api_keys other \
             WHERE other.login_of = $1), $2) WHERE id = $1";
        let (person, login) = (person.clone(), login.cloned());
        self.write(move |mut conn| {
            Box::pin(async move {
                match &login {
                    Some(login) => conn.execute(ONE, args![person.as_str(), login.as_str()]).await?,
                    None => conn.execute(ALL, args![person.as_str()]).await?,
                };
                conn.execute(LEFT, args![person.as_str(), now_ms]).await.map(drop)
            })
        })
        .await
    }

    /// Every key, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Unreadable rows are left out, with a word in the log.
    pub async fn list_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        const SQL: &str = "SELECT * FROM api_keys ORDER BY created_ms, id";
        self.list(&TABLE, Which::All, SQL, Vec::new(), read).await
    }

    /// Removes a key. Says whether it was there.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn delete_key(&self, id: &KeyId) -> Result<bool, StoreError> {
        let deleted = self.change_keys("DELETE FROM api_keys WHERE id = $1", args![id.as_str()]).await?;
        self.met.mended(&TABLE, id.as_str());
        Ok(deleted)
    }

    /// Records when a key was last used; an earlier time than the stored one changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn touch_key(&self, id: &KeyId, used_ms: u64) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE api_keys SET last_used_ms = $2 \
             WHERE id = $1 AND (last_used_ms IS NULL OR last_used_ms < $2)";
        self.change_keys(SQL, args![id.as_str(), used_ms]).await.map(drop)
    }

    async fn change_keys(&self, sql: &'static str, values: Vec<Value>) -> Result<bool, StoreError> {
        self.write(move |mut conn| Box::pin(async move { Ok(conn.execute(sql, values).await? > 0) })).await
    }
}

/// Writes what the issuer said of a person into all other records of that person: their rights in another project
/// follow from it, too.
async fn renew_others(conn: &mut Conn<'_>, person: &KeyRecord) -> Result<(), StoreError> {
    const PEOPLE: &str = "SELECT * FROM api_keys WHERE person IS NOT NULL AND id <> $1";
    const RENEW: &str = "UPDATE api_keys SET name = $2, person = $3 WHERE id = $1";
    let KeyKind::Person(said) = &person.kind else { return Ok(()) };
    for row in conn.rows(PEOPLE, args![person.id.as_str()]).await? {
        // One that is unreadable otherwise is renewed all the same: whoever can read it again finds what holds now. One
        // whose person is unreadable lets nobody in, and does not keep the others out.
        let (Ok(id), Ok(other)) = (row.text("id"), row.json::<Person>("person")) else { continue };
        if other.issuer == said.issuer && other.subject == said.subject {
            conn.execute(RENEW, args![id, person.name.as_str(), json(said)?]).await?;
        }
    }
    Ok(())
}

fn read(row: &Row) -> Result<KeyRecord, BadColumn> {
    Ok(KeyRecord {
        id: row.parse("id")?,
        name: row.text("name")?,
        hash: row.bytes("hash")?,
        scopes: match row.text_opt("project_scope")? {
            Some(scope) => vec![scope],
            None => row.json("scopes")?,
        },
        project: row.parse_opt("project")?,
        created_ms: row.uint("created_ms")?,
        expires_ms: row.uint_opt("expires_ms")?,
        last_used_ms: row.uint_opt("last_used_ms")?,
        kind: kind(row)?,
    })
}

fn kind(row: &Row) -> Result<KeyKind, BadColumn> {
    if let Some(person) = row.parse_opt("login_of")? {
        let by = row.text_opt("login_by")?.and_then(|text| LoginBy::parse(&text)).ok_or("login_by")?;
        return Ok(KeyKind::Login(Login { person, by, exchange: row.bytes("login_exchange")? }));
    }
    Ok(match row.text_opt("person")? {
        Some(text) => KeyKind::Person(serde_json::from_str(&text).or(Err("person"))?),
        None => KeyKind::Key,
    })
}

fn values(key: &KeyRecord) -> Result<Vec<Value>, StoreError> {
    // An older server, which knows of no projects, finds no scope and lets this key do nothing.
    let none = Vec::new();
    let (scopes, project_scope) = match &key.project {
        Some(_) => (&none, key.scopes.first()),
        None => (&key.scopes, None),
    };
    let mut values = args![
        key.id.as_str(),
        key.name.as_str(),
        key.hash.as_slice(),
        json(scopes)?,
        key.created_ms,
        key.expires_ms,
        key.last_used_ms,
    ];
    values.extend(match &key.kind {
        KeyKind::Key => [Value::Text(None), Value::Text(None), Value::Text(None), Value::NoBytes],
        KeyKind::Person(person) => [json(person)?, Value::Text(None), Value::Text(None), Value::NoBytes],
        KeyKind::Login(login) => [
            Value::Text(None),
            login.person.as_str().into(),
            login.by.as_str().into(),
            Value::Bytes(login.exchange.clone()),
        ],
    });
    values.extend(args![key.project.as_ref().map(ProjectId::as_str), project_scope.map(String::as_str)]);
    Ok(values)
}
