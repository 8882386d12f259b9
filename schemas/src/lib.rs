//! The vocabulary of Anabranch: changes, positions, shards, birthdays and serial codes, and how they are written.
//!
//! No I/O, no async, no clock. Every other package speaks in these types; none of them is specific to a server.
//!
//! # Words
//!
//! One word has one meaning, in code, settings, metrics and documents. `ARCHITECTURE.md` has the same list.
//!
//! - **source**: one MySQL or MariaDB server whose binlog is read, or whose tables are read again.
//! - **entity**: the content of a captured table: users, devices with their codes, or payment documents.
//! - **shard table**: one physical source table; its *shard id* is a hash of source, database, table and generation.
//! - **change**: one inserted, updated or deleted row, or the withdrawal of a whole shard table (TRUNCATE, DROP).
//! - **group**: the unit that the binlog commits: a transaction or a single statement, with one GTID.
//! - **reader**: the task that reads the binlog of one source and appends to its stream.
//! - **replica slot**: the number by which a source tells its binlog readers apart: 0 is the reader, each direct feed
//!   has its own.
//! - **stream, message**: the JetStream stream of one source; a message holds a batch of changes and an envelope.
//! - **position message**: a message without changes: it says how far the reader of a quiet source has read.
//! - **position (`Lsn`)**: a place in a source's binlog as a rising number; the version of a derived row.
//! - **epoch**: the part of a position that counts the servers that a source was read from.
//! - **beginning**: the start of reading a source anew, with a number; transactions before it may be unknown.
//! - **crossing**: where a stream goes on at a server that lacks what was read.
//! - **resume point**: binlog file, offset and GTID set from which reading continues after a position.
//! - **register**: a short text in the log's key-value bucket, changed by compare-and-set: epochs, machine numbers.
//! - **projection**: a pure function from a change to mutations of derived tables.
//! - **derived row, claim**: a row of a store, and the statement (shard table, key) by which a source row claims it.
//! - **search document**: a derived row in an index; a *payment document* is a source row with an identifier.
//! - **target**: one server with derived tables or indexes; its *control database* keeps progress.
//! - **lane**: one (projection, target, source, lane number): it owns a share of the derived tables and writes them
//!   alone.
//! - **progress**: the position of a lane, stored in the same transaction as its rows.
//! - **fence**: the check that refuses an overtaken process: a revision in progress, a chain of message ids in the log.
//! - **flush**: one transaction of a lane: rows, outbox and progress.
//! - **direct feed**: a lane's own reading of the binlog, for as long as the stream does not serve it.
//! - **refresh**: a lane reads source tables again: all, one, or rows by key or condition.
//! - **reread**: the log's record that rows of a shard table changed unseen, so each lane is to read the table again.
//! - **retired table**: a source table that left by a retention rule; its derived rows up to that position stand.
//! - **chunk**: a part of a table, read in one snapshot.
//! - **cursor**: the place after a row, from which a scan goes on.
//! - **low, high watermark**: two positions of a chunk: it holds every change up to the low one and none above the high
//!   one.
//! - **withdrawal, sweep**: the removal, in parts, of all rows of a shard table; the removal of rows that a refresh did
//!   not find.
//! - **reconciliation**: a run that compares every derived row with its source, repairs and gives a verdict.
//! - **repair**: a refresh of the single keys that a reconciliation found wrong.
//! - **foreign row**: a derived row of a shard table that no source has.
//! - **spot check**: the comparison of a few changed keys, some minutes after their change.
//! - **barrier**: the wait until all lanes have passed what the sources had committed.
//! - **drift gate**: the share of wrong rows above which a reconciliation repairs nothing without the word of a person.
//! - **backpressure**: the pause of a reconciliation while a source, a replica or a lane is too busy.
//! - **outbox, drain**: codes that a flush of mapping rows touched; the task that removes and fills their cache
//!   entries.
//! - **freshness key**: a key of the cache that expires: while it is there, the cache is no old copy of itself.
//! - **dead letter**: a search document that an index refuses, or a coupon that could not be granted; work goes on.
//! - **operation**: one change that a person has a command or the page make; two rows say who, when and what.
//! - **lease**: the right to work on a task, for some seconds.
//! - **twin**: an outside system in memory, for tests: an implementation of ports.
//! - **mint**: the task that makes uuids, under the lease of a machine number.
//! - **programme**: one kind of birthday coupon, with time zone, calendars and rules.
//! - **occurrence**: the calendar year of a coupon, such as `solar:2027`.
//! - **cohort, wave**: the members that celebrate a day, as frozen; one of its three freezes: midnight, noon, catch-up.
//! - **ledger**: the permanent rows (user, programme, occurrence) that decide who gets a coupon.
//! - **attempt**: one try: a task's run between pauses, or of a granter at a ledger row, by a number used once.

pub mod beginning;
pub mod birthday;
pub mod capacity;
pub mod celebration;
pub mod change;
pub mod codec;
pub mod envelope;
pub mod flux;
pub mod lsn;
pub mod lunar;
pub mod search;
pub mod serial;
pub mod shard;
pub mod sql;
pub mod timeline;
