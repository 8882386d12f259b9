//! What each port promises, checked on the in-memory twin and on the real server by the same functions.
//!
//! So the simulation, which runs on the twins, says something about the servers. What only a real server can show
//! stands beside this folder.

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

/// Makes three tests of each function: on the twin, on MariaDB, and on MySQL where the machine can have it.
macro_rules! on_twin_and_both_servers {
    ($twin:ident, $server:ident: $($test:ident),+ $(,)?) => {
        on_twin_and_server!($twin, $server: $($test),+);
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let Some(ground) = super::$server::mysql().await else { return };
                super::$test(ground).await;
            })+
        }
    };
}

pub mod audit;
pub mod cache;
pub mod derived_rows;
pub mod lease;
pub mod log;
pub mod marks;
pub mod outbox;
pub mod rows;
pub mod source;
pub mod store;
