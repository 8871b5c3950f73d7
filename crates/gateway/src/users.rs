//! Users: clients' tokens, and the tables and rights that they stand for.
//!
//! A file in TOML lists the users; it holds the SHA-256 of each token, never a token. A token names its user, so a
//! client may send it alone.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use farleaf_index::suggest;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const FIELDS: [&str; 4] = ["name", "token_sha256", "tables", "rights"];
/// Random bytes of a token.
const TOKEN_BYTES: usize = 24;

/// A failure to read a list of users: the text names the user, the field, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsersError(String);

/// The changes that a user may make; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rights {
    /// Reads its tables.
    Read,
    /// Changes single keys and ranges as well.
    Write,
    /// Empties tables and ends other clients' connections as well.
    Admin,
}

impl Rights {
    const ALL: [(&str, Rights); 3] =
        [("read", Rights::Read), ("write", Rights::Write), ("admin", Rights::Admin)];
}

/// A user of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name, which error messages and the log show.
    pub name: String,
    /// Names of the tables that it selects by their place.
    pub tables: Vec<String>,
    /// The changes that it may make.
    pub rights: Rights,
    token: Digest,
}

type Digest = [u8; 32];

/// The users of a gateway.
#[derive(Clone, Default)]
pub struct Users {
    by_token: HashMap<Digest, Arc<User>>,
    /// In the order of the file.
    all: Vec<Arc<User>>,
}

impl Users {
    /// Reads a list of users.
    ///
    /// # Errors
    /// Text that is no TOML, an unknown or missing field, a value that is none, a name or token twice, no user.
    pub fn parse(text: &str) -> Result<Users, UsersError> {
        let file = DeTable::parse(text).map_err(fail)?;
        let file = file.get_ref();
        let mut names = file.keys().map(|name| &**name.get_ref());
        if let Some(name) = names.find(|name| *name != "user") {
            let hint = suggest::hint(name, ["user"]);
            return Err(fail(format!(
                "\"{name}\" is not known here{hint}: write [[user]] for each user"
            )));
        }
        let list = match file.get("user").map(Spanned::get_ref) {
            Some(DeValue::Array(list)) if !list.is_empty() => list,
            Some(_) => return Err(fail("user is no list: write [[user]] for each user")),
            None => return Err(fail("there is no user: write [[user]] for each")),
        };
        let mut users = Users::default();
        for (number, fields) in (1..).zip(list) {
            let user = Arc::new(user(number, fields.get_ref())?);
            if let Some(other) = users.all.iter().find(|it| it.name == user.name) {
                return Err(fail(format!("two users have the name \"{}\"", other.name)));
            }
            if let Some(other) = users.by_token.insert(user.token, Arc::clone(&user)) {
                return Err(fail(format!(
                    "users \"{}\" and \"{}\" have the same token: give each its own (farleaf redis token makes one)",
                    other.name, user.name
                )));
            }
            users.all.push(user);
        }
        Ok(users)
    }

    /// The users, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &User> {
        self.all.iter().map(AsRef::as_ref)
    }

    /// Names of all users' tables, in the order of the file, each once.
    pub fn tables(&self) -> Vec<String> {
        let mut tables: Vec<String> = Vec::new();
        for table in self.iter().flat_map(|user| &user.tables) {
            if !tables.contains(table) {
                tables.push(table.clone());
            }
        }
        tables
    }

    /// Finds the place of each user's tables among `served`.
    ///
    /// # Errors
    /// A user has a table that is not served.
    pub fn check_tables(&self, served: &[String]) -> Result<(), UsersError> {
        for user in self.iter() {
            if let Some(table) = user.tables.iter().find(|table| !served.contains(table)) {
                let hint = suggest::hint(table, served.iter().map(String::as_str));
                return Err(fail(format!(
                    "user \"{}\": the gateway serves no table \"{table}\"{hint}",
                    user.name
                )));
            }
        }
        Ok(())
    }

    /// The user of that token, and of that name if one is given.
    pub(crate) fn find(&self, name: Option<&[u8]>, token: &[u8]) -> Option<&Arc<User>> {
        let user = self.by_token.get(&sha256(token))?;
        name.is_none_or(|name| name == user.name.as_bytes()).then_some(user)
    }

    /// The user as it is now; `None` if it is gone, or has another token.
    pub(crate) fn now(&self, user: &User) -> Option<&Arc<User>> {
        self.by_token.get(&user.token).filter(|now| now.name == user.name)
    }
}

/// Shows names only.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|user| &user.name)).finish()
    }
}

fn user(number: usize, fields: &DeValue<'_>) -> Result<User, UsersError> {
    let DeValue::Table(fields) = fields else {
        return Err(fail(format!("user {number} is no table: write [[user]] for each user")));
    };
    let who = match fields.get("name").map(Spanned::get_ref) {
        Some(DeValue::String(name)) => format!("user {number} (\"{name}\")"),
        _ => format!("user {number}"),
    };
    let mut names = fields.keys().map(|name| &**name.get_ref());
    if let Some(name) = names.find(|name| !FIELDS.contains(name)) {
        let hint = suggest::hint(name, FIELDS);
        return Err(fail(format!(
            "{who}: \"{name}\" is not known here{hint}; a user has name, token_sha256, tables and rights"
        )));
    }
    let text = |field: &str| match fields.get(field).map(Spanned::get_ref) {
        Some(DeValue::String(text)) => Ok(&**text),
        Some(_) => Err(fail(format!("{who}: {field} is no text in quotes"))),
        None => Err(fail(format!("{who}: {field} is missing"))),
    };
    let name = text("name")?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(fail(format!("{who}: a name has printable ASCII characters and no space")));
    }
    let token = from_hex(text("token_sha256")?).ok_or_else(|| {
        fail(format!(
            "{who}: token_sha256 is not the SHA-256 of a token, 64 hexadecimal digits (farleaf redis token makes one)"
        ))
    })?;
    let rights = text("rights")?;
    let known = Rights::ALL.iter().find(|(name, _)| *name == rights);
    let rights = known.map(|(_, rights)| *rights).ok_or_else(|| {
        let hint = suggest::hint(rights, Rights::ALL.map(|(name, _)| name));
        fail(format!("{who}: there are no rights \"{rights}\"{hint}: write read, write or admin"))
    })?;
    let tables = match fields.get("tables").map(Spanned::get_ref) {
        Some(DeValue::Array(tables)) if !tables.is_empty() => tables
            .iter()
            .map(|table| table.get_ref().as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>(),
        Some(_) => None,
        None => return Err(fail(format!("{who}: tables is missing"))),
    };
    let tables = tables.ok_or_else(|| {
        fail(format!("{who}: tables is no list of names: write tables = [\"orders\", \"carts\"]"))
    })?;
    Ok(User { name: name.to_owned(), tables, rights, token })
}

fn fail(what: impl fmt::Display) -> UsersError {
    UsersError(what.to_string().trim_end().to_owned())
}

fn sha256(token: &[u8]) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest(&SHA256, token).as_ref());
    bytes
}

fn from_hex(text: &str) -> Option<Digest> {
    let mut bytes = Digest::default();
    if text.len() != 2 * bytes.len() || !text.is_ascii() {
        return None;
    }
    for (number, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * number..2 * number + 2], 16).ok()?;
    }
    // A sign is no digit, though numbers may have one.
    text.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(bytes)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A random token, and the `token_sha256` of its user.
///
/// # Errors
/// The system has no random bytes.
pub fn new_token() -> Result<(String, String), UsersError> {
    let mut bytes = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| fail("the system has no random bytes"))?;
    let token = to_hex(&bytes);
    let hash = to_hex(&sha256(token.as_bytes()));
    Ok((token, hash))
}
