//! The promises of each port, checked on the in-memory twin and on the real server by the same functions.
//!
//! So the simulation, which runs on the twins, also proves something about the servers. Tests that need a real server
//! are beside this folder.

/// Makes two tests of each function: on the twin, in virtual time, and on the server.
macro_rules! on_twin_and_server {
    ($twin:ident, $server:ident: $($test:ident),+ $(,)?) => {
        on_twin!(twin, $twin: $($test),+);
        on_server!(server, $server: $($test),+);
    };
}

/// Makes a test of each function in a module, on a twin.
macro_rules! on_twin {
    ($module:ident, $twin:ident: $($test:ident),+ $(,)?) => {
        mod $module {
            $(#[tokio::test(start_paused = true)]
            async fn $test() {
                super::$test(<super::$twin as super::Ground>::start().await).await;
            })+
        }
    };
}

/// Makes a test of each function in a module, on a real server.
macro_rules! on_server {
    ($module:ident, $server:ident: $($test:ident),+ $(,)?) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(<super::$server as super::Ground>::start().await).await;
            })+
        }
    };
}

/// Makes tests of functions that take a lent [`crate::source::Database`]: on MariaDB, and on MariaDB 11.8 where the
/// machine can have it.
macro_rules! on_each_mariadb {
    ($($test:ident),+ $(,)?) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let kind = crate::source::DatabaseKind::MariaDb;
                super::$test(crate::source::Database::lent(kind).await.unwrap()).await;
            })+
        }
        mod mariadb_11 {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let kind = crate::source::DatabaseKind::MariaDb11;
                let Some(database) = crate::source::Database::lent(kind).await else { return };
                super::$test(database).await;
            })+
        }
    };
}

/// Makes the tests of [`on_each_mariadb`], and one of each function on MySQL where the machine can have it.
macro_rules! on_each_server {
    ($($test:ident),+ $(,)?) => {
        on_each_mariadb!($($test),+);
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let kind = crate::source::DatabaseKind::MySql;
                let Some(database) = crate::source::Database::lent(kind).await else { return };
                super::$test(database).await;
            })+
        }
    };
}

/// Makes a test of each function in a module, on a server that a machine may not have.
macro_rules! on_further_server {
    ($module:ident, $kind:ident, $server:ident: $($test:ident),+ $(,)?) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let kind = crate::source::DatabaseKind::$kind;
                let Some(ground) = super::$server::further(kind).await else { return };
                super::$test(ground).await;
            })+
        }
    };
}

/// Makes four tests of each function whose result depends on the version of a server: on the twin, on MariaDB, and,
/// where the machine can have them, on MariaDB 11.8 and on MySQL.
macro_rules! on_twin_and_every_server {
    ($twin:ident, $server:ident: $($test:ident),+ $(,)?) => {
        on_twin_and_both_kinds_of_server!($twin, $server: $($test),+);
        on_further_server!(mariadb_11, MariaDb11, $server: $($test),+);
    };
}

/// Makes three tests of each function: on the twin, on MariaDB, and on MySQL where the machine can have it. The suite
/// `versions` has the test of MariaDB 11.8, which differs little where Anabranch only writes.
macro_rules! on_twin_and_both_kinds_of_server {
    ($twin:ident, $server:ident: $($test:ident),+ $(,)?) => {
        on_twin_and_server!($twin, $server: $($test),+);
        on_further_server!(mysql, MySql, $server: $($test),+);
    };
}

pub mod audit;
pub mod cache;
mod cohorts;
mod coupon_system;
pub mod derived_rows;
mod issues;
mod lease;
pub mod ledger;
pub mod log;
mod operations;
pub mod outbox;
pub mod registers;
mod relations;
pub mod rows;
mod sent_again;
pub mod sequence;
mod shard_rows;
pub mod source;
pub mod store;
pub mod work_queue;
