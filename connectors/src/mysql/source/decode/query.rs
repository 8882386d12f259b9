//! Query events: the meaning of a logged statement for captured tables.
//!
//! The verbs in the closed list below are harmless or have a known meaning. Every other verb is [`Statement::Unknown`],
//! for which the stream has every captured table read again, or stops. This file reads the event itself because
//! `mysql_cdc`'s parser refuses text that is not UTF-8. The caller decides whether a name is captured.

use super::tokens::{Characters, Quoting, Token, Tokens};
use super::wire::{Malformed, Reader};
use super::xid::Xid;
pub use alter::{ColumnType, RAW, TableChange};

/// A Query event, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    pub database: &'a [u8],
    pub sql: &'a [u8],
    pub quoting: Quoting,
    /// The session has no strict mode: the server cuts values that do not fit into a narrower column.
    pub is_lenient: bool,
}

impl<'a> Query<'a> {
    /// Reads an event's body; `extra_bytes` are between the fixed header and the status variables (13 for
    /// EXECUTE_LOAD_QUERY).
    pub fn read(body: &'a [u8], extra_bytes: usize) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        // Thread id and duration.
        reader.take(8)?;
        let database_length = usize::from(reader.u8()?);
        // Error code.
        reader.take(2)?;
        let status_length = reader.little(2)? as usize;
        reader.take(extra_bytes)?;
        let status = reader.take(status_length)?;
        let database = reader.take(database_length)?;
        reader.u8()?;
        let (quoting, is_lenient) = session(status);
        Ok(Self { database, sql: reader.rest(), quoting, is_lenient })
    }
}

/// Returns quoting and leniency, by SQL mode and character set from the status variables. Servers write them in the
/// order of the list below; variables after the character set are not read.
fn session(status: &[u8]) -> (Quoting, bool) {
    const FLAGS2: u8 = 0;
    const SQL_MODE: u8 = 1;
    const CATALOG: u8 = 6;
    const AUTO_INCREMENT: u8 = 3;
    const CHARACTER_SET: u8 = 4;
    const MODE_ANSI_QUOTES: u64 = 1 << 2;
    const MODE_NO_BACKSLASH_ESCAPES: u64 = 1 << 20;
    /// `STRICT_TRANS_TABLES` and `STRICT_ALL_TABLES`.
    const MODES_STRICT: u64 = (1 << 21) | (1 << 22);
    let mut reader = Reader::new(status);
    let (mut quoting, mut is_lenient) = (Quoting::default(), false);
    let mut read = || -> Result<(), Malformed> {
        loop {
            match reader.u8()? {
                FLAGS2 | AUTO_INCREMENT => _ = reader.take(4)?,
                SQL_MODE => {
                    let mode = reader.little(8)?;
                    quoting.ansi_quotes = mode & MODE_ANSI_QUOTES != 0;
                    quoting.no_backslash_escapes = mode & MODE_NO_BACKSLASH_ESCAPES != 0;
                    is_lenient = mode & MODES_STRICT == 0;
                }
                CATALOG => {
                    let length = usize::from(reader.u8()?);
                    reader.take(length)?;
                }
                CHARACTER_SET => {
                    // The value of `character_set_client`, before the collations of the connection and the server.
                    quoting.characters = Characters::of_collation(reader.little(2)?);
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    };
    // An error is the end of the variables: the values so far count.
    let _ = read();
    (quoting, is_lenient)
}

/// A table as a statement names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    pub database: String,
    pub table: String,
}

/// A table whose rows came or went without row events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedTable {
    pub name: TableName,
    /// A table of this name exists after the statement.
    pub exists: bool,
}

/// Moved tables, each name once, in its state after the last step of a statement.
#[derive(Debug, Default)]
struct Moves(Vec<MovedTable>);

impl Moves {
    fn set(&mut self, name: TableName, exists: bool) {
        match self.0.iter_mut().find(|moved| moved.name == name) {
            Some(moved) => moved.exists = exists,
            None => self.0.push(MovedTable { name, exists }),
        }
    }
}

/// The meaning of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    Begin,
    Commit,
    Rollback,
    Savepoint(String),
    /// Undoes the group's changes since this savepoint.
    RollbackTo(String),
    /// The group becomes, or is, an XA branch that is decided later.
    XaBranch,
    XaCommit(Xid),
    XaRollback(Xid),
    /// Changes no row of any table.
    Harmless,
    /// Creates a table, which is empty unless row events follow.
    CreateTable(TableName),
    /// Creates a table with unusual parts (`changes`); with `replaces` all rows of the table before it are gone.
    CreateSpecial {
        table: TableName,
        replaces: bool,
        changes: Vec<TableChange>,
    },
    CreateDatabase(String),
    /// Alters a table so that values may change without row events, or are logged in another form.
    Alter {
        table: TableName,
        changes: Vec<TableChange>,
    },
    /// Removes all rows of these tables without row events.
    Remove(Vec<TableName>),
    DropDatabase(String),
    /// Moves rows into or out of these tables without row events, in a way that cannot be followed.
    Move {
        tables: Vec<MovedTable>,
        how: &'static str,
    },
    /// Changes rows by a logged text, with every name in it that could be a table.
    Change(Vec<TableName>),
    /// A verb of unknown effect, which can concern any table.
    Unknown(String),
}

/// End of a `DROP TABLE` that the server wrote itself: in UTF-8, whatever the session's character set is.
const GENERATED: &[u8] = b"/* generated by server */";

/// Classifies a statement. `database` is the session's default database.
pub fn classify(query: &Query<'_>) -> Statement {
    match query.sql {
        b"BEGIN" => return Statement::Begin,
        b"COMMIT" => return Statement::Commit,
        // MariaDB sends this in place of an event that a replica of this client's capability does not get.
        sql if sql.starts_with(b"# Dummy ev") => return Statement::Unknown("a replaced event".to_owned()),
        _ => {}
    }
    let database = String::from_utf8_lossy(query.database).into_owned();
    let mut quoting = query.quoting;
    if query.sql.starts_with(b"DROP ") && query.sql.ends_with(GENERATED) {
        quoting.characters = Characters::Plain;
    }
    let mut statement = Classifier { tokens: Tokens::new(query.sql, quoting), database }.statement();
    if let Statement::Alter { changes, .. } = &mut statement
        && query.is_lenient
    {
        changes.push(TableChange::Lenient);
    }
    statement
}

struct Classifier<'a> {
    tokens: Tokens<'a>,
    database: String,
}

/// Verbs that change no row, whatever follows.
const HARMLESS: &[&str] = &[
    "GRANT",
    "REVOKE",
    "FLUSH",
    "OPTIMIZE",
    "REPAIR",
    "CHECK",
    "CHECKSUM",
    "INSTALL",
    "UNINSTALL",
    "RELEASE",
    "LOCK",
    "UNLOCK",
    "CACHE",
    "RESET",
    "PURGE",
    "KILL",
    "SHOW",
    "USE",
    "BACKUP",
    "HELP",
];

impl Classifier<'_> {
    fn statement(mut self) -> Statement {
        let Some(first) = self.tokens.next() else { return Statement::Harmless };
        let Token::Word(verb) = first else {
            return Statement::Unknown("a statement without a verb".to_owned());
        };
        let verb = verb.to_ascii_uppercase();
        match verb.as_str() {
            "BEGIN" => match self.tokens.next() {
                None => Statement::Begin,
                Some(token) if token.is("WORK") => Statement::Begin,
                Some(_) => Statement::Unknown("BEGIN NOT ATOMIC".to_owned()),
            },
            "START" => match self.tokens.next() {
                Some(token) if token.is("TRANSACTION") => Statement::Begin,
                _ => Statement::Unknown(verb),
            },
            "COMMIT" => Statement::Commit,
            "ROLLBACK" => {
                if !self.tokens.any(|token| token.is("TO")) {
                    return Statement::Rollback;
                }
                let name = self.name_after(&["SAVEPOINT"]);
                name.map_or_else(|| Statement::Unknown(verb), |name| Statement::RollbackTo(name.table))
            }
            "SAVEPOINT" => {
                let name = self.name_after(&[]);
                name.map_or_else(|| Statement::Unknown(verb), |name| Statement::Savepoint(name.table))
            }
            "XA" => self.xa(),
            "DROP" => self.drop_statement(),
            "TRUNCATE" => {
                let table = self.name_after(&["TABLE"]);
                table.map_or_else(|| Statement::Unknown(verb), |table| Statement::Remove(vec![table]))
            }
            "CREATE" => self.create(),
            "ALTER" => self.alter(),
            "RENAME" => self.rename(),
            "SET" => self.set(),
            "ANALYZE" => self.analyze(),
            "INSERT" | "REPLACE" | "UPDATE" | "DELETE" | "LOAD" => self.change(),
            other if HARMLESS.contains(&other) => Statement::Harmless,
            _ => Statement::Unknown(verb),
        }
    }

    fn xa(&mut self) -> Statement {
        let Some(word) = self.tokens.next() else { return Statement::Unknown("XA".to_owned()) };
        if !(word.is("COMMIT") || word.is("ROLLBACK")) {
            return Statement::XaBranch;
        }
        match Xid::from_sql(self.tokens.rest()) {
            Some(xid) if word.is("COMMIT") => Statement::XaCommit(xid),
            Some(xid) => Statement::XaRollback(xid),
            None => Statement::Unknown("a decision about an XA branch of unknown form".to_owned()),
        }
    }

    /// Reads `name` or `database.name`, after any of these keywords.
    fn name_after(&mut self, keywords: &[&str]) -> Option<TableName> {
        let mut token = self.tokens.next()?;
        while keywords.iter().any(|keyword| token.is(keyword)) {
            token = self.tokens.next()?;
        }
        self.name_from(token)
    }

    fn name_from(&mut self, token: Token) -> Option<TableName> {
        let first = token.name()?.to_owned();
        let mut ahead = self.tokens.clone();
        if ahead.next() == Some(Token::Symbol(b'.'))
            && let Some(second) = ahead.next()
            && let Some(table) = second.name()
        {
            self.tokens = ahead;
            return Some(TableName { database: first, table: table.to_owned() });
        }
        Some(TableName { database: self.database.clone(), table: first })
    }

    fn drop_statement(&mut self) -> Statement {
        const IF_EXISTS: &[&str] = &["IF", "EXISTS"];
        let Some(kind) = self.tokens.next() else { return Statement::Harmless };
        if kind.is("DATABASE") || kind.is("SCHEMA") {
            return match self.name_after(IF_EXISTS) {
                Some(name) => Statement::DropDatabase(name.table),
                None => Statement::Unknown("DROP DATABASE".to_owned()),
            };
        }
        // A temporary table of the same name hides the captured one; dropping it removes no captured row.
        if !(kind.is("TABLE") || kind.is("TABLES")) {
            return Statement::Harmless;
        }
        let mut tables = Vec::new();
        loop {
            match self.name_after(IF_EXISTS) {
                Some(table) => tables.push(table),
                None => return Statement::Unknown("DROP TABLE".to_owned()),
            }
            if self.tokens.next() != Some(Token::Symbol(b',')) {
                return Statement::Remove(tables);
            }
        }
    }

    /// Reads the rest of a `CREATE`; `CREATE OR REPLACE TABLE` (MariaDB) drops the table before it.
    fn create(&mut self) -> Statement {
        const IF_NOT_EXISTS: &[&str] = &["IF", "NOT", "EXISTS"];
        let mut kind = self.tokens.next();
        let replaces = kind.as_ref().is_some_and(|kind| kind.is("OR"));
        if replaces {
            kind = self.tokens.nth(1);
        }
        let Some(kind) = kind else { return Statement::Harmless };
        let is_database = kind.is("DATABASE") || kind.is("SCHEMA");
        if !is_database && !kind.is("TABLE") {
            return Statement::Harmless;
        }
        let name = self.name_after(IF_NOT_EXISTS);
        let changes = if is_database { Vec::new() } else { alter::of_create(self.tokens.clone()) };
        match (name, is_database, replaces) {
            (None, ..) => Statement::Unknown("CREATE".to_owned()),
            (Some(name), true, false) => Statement::CreateDatabase(name.table),
            (Some(name), true, true) => Statement::DropDatabase(name.table),
            (Some(table), false, replaces) if !changes.is_empty() => {
                Statement::CreateSpecial { table, replaces, changes }
            }
            (Some(table), false, false) => Statement::CreateTable(table),
            (Some(table), false, true) => Statement::Remove(vec![table]),
        }
    }

    /// Reads the rest of an `ALTER`, which may move rows without row events or change the table's shape.
    fn alter(&mut self) -> Statement {
        let mut kind = self.tokens.next();
        let mut changes = Vec::new();
        while let Some(word) = &kind
            && ["ONLINE", "OFFLINE", "IGNORE"].iter().any(|keyword| word.is(keyword))
        {
            if word.is("IGNORE") {
                changes.push(TableChange::Ignore);
            }
            kind = self.tokens.next();
        }
        if !kind.is_some_and(|kind| kind.is("TABLE")) {
            return Statement::Harmless;
        }
        let Some(altered) = self.name_after(&["IF", "EXISTS"]) else {
            return Statement::Unknown("ALTER TABLE".to_owned());
        };
        changes.extend(alter::of_alter(self.tokens.clone()));
        let mut moves = Moves::default();
        moves.set(altered.clone(), true);
        match self.moved(&altered, &mut moves) {
            Some(how) => Statement::Move { tables: moves.0, how },
            None if changes.is_empty() => Statement::Harmless,
            None => Statement::Alter { table: altered, changes },
        }
    }

    /// Returns how an `ALTER TABLE` moves rows, if it does; adds the other tables that it names to `moves`.
    fn moved(&mut self, altered: &TableName, moves: &mut Moves) -> Option<&'static str> {
        let mut found = None;
        while let Some(token) = self.tokens.next() {
            let Token::Word(word) = token else { continue };
            let mut ahead = self.tokens.clone();
            let Some(next) = ahead.next() else { break };
            match word.to_ascii_uppercase().as_str() {
                "RENAME" if !["COLUMN", "INDEX", "KEY"].iter().any(|keyword| next.is(keyword)) => {
                    found = Some("ALTER TABLE … RENAME");
                    while self.tokens.clone().next() == Some(Token::Symbol(b'=')) {
                        self.tokens.next();
                    }
                    if let Some(name) = self.name_after(&["TO", "AS"]) {
                        moves.set(altered.clone(), false);
                        moves.set(name, true);
                    }
                }
                "TRUNCATE" | "DROP" | "EXCHANGE" | "CONVERT" | "DISCARD" | "IMPORT"
                    if next.is("PARTITION") =>
                {
                    found = Some("ALTER TABLE … PARTITION");
                }
                "DISCARD" | "IMPORT" if next.is("TABLESPACE") => found = Some("ALTER TABLE … TABLESPACE"),
                // `CONVERT PARTITION p TO TABLE t` makes a table with rows, `CONVERT TABLE t TO PARTITION p` ends one.
                verb @ ("WITH" | "CONVERT" | "TO") if next.is("TABLE") => {
                    found = Some("ALTER TABLE … PARTITION");
                    let exists = verb != "CONVERT";
                    self.name_after(&["TABLE"]).into_iter().for_each(|name| moves.set(name, exists));
                }
                _ => {}
            }
        }
        found
    }

    fn rename(&mut self) -> Statement {
        match self.tokens.next() {
            Some(kind) if kind.is("USER") => return Statement::Harmless,
            Some(kind) if kind.is("TABLE") || kind.is("TABLES") => {}
            _ => return Statement::Unknown("RENAME".to_owned()),
        }
        let mut moves = Moves::default();
        // Old and new names alternate: the rows of the old one are now under the new one.
        let mut exists = false;
        while let Some(table) = self.name_after(&["IF", "EXISTS", "TO", "WAIT", "NOWAIT"]) {
            moves.set(table, exists);
            exists = !exists;
            // Either `TO` or a comma; both lead to the next name, anything else ends the list or is a wait time.
            if self.tokens.clone().next() == Some(Token::Symbol(b',')) {
                self.tokens.next();
            }
        }
        Statement::Move { tables: moves.0, how: "RENAME TABLE" }
    }

    /// Reads the rest of a `SET`; MariaDB's `SET STATEMENT variable = value FOR statement` carries another statement.
    fn set(mut self) -> Statement {
        if !self.tokens.clone().next().is_some_and(|token| token.is("STATEMENT")) {
            return Statement::Harmless;
        }
        if self.tokens.any(|token| token.is("FOR")) {
            self.statement()
        } else {
            Statement::Unknown("SET STATEMENT".to_owned())
        }
    }

    /// Reads the rest of an `ANALYZE`: `ANALYZE TABLE` is harmless; MariaDB's `ANALYZE statement` executes it.
    fn analyze(mut self) -> Statement {
        let mut ahead = self.tokens.clone();
        let is_table = ahead
            .by_ref()
            .take(2)
            .any(|token| ["TABLE", "TABLES", "PERSISTENT"].iter().any(|keyword| token.is(keyword)));
        if is_table {
            return Statement::Harmless;
        }
        while self.tokens.clone().next().is_some_and(|token| token.is("FORMAT")) {
            self.tokens.nth(2);
        }
        self.statement()
    }

    /// Collects every identifier, as each could be a table, alone or after a database.
    fn change(&mut self) -> Statement {
        let mut tables: Vec<TableName> = Vec::new();
        let mut add = |name: TableName| {
            if !tables.contains(&name) {
                tables.push(name);
            }
        };
        while let Some(token) = self.tokens.next() {
            let Some(first) = token.name().map(str::to_owned) else { continue };
            add(TableName { database: self.database.clone(), table: first });
            if let Some(name) = self.name_from(token) {
                add(name);
            }
        }
        Statement::Change(tables)
    }
}

mod alter;

#[cfg(test)]
mod tests;
