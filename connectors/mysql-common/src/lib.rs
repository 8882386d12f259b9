//! `mysql_common` with another reader of binlog events; everything else is the original's.
//!
//! `mysql_async` makes each packet of a binlog into an [`Event`](binlog::events::Event) with `mysql_common`'s
//! `EventStreamReader`. The original keeps every table map of a binlog file, though Anabranch asks for none, copies the
//! description of the format into each event, and reserves as many bytes as an event claims to have. The workspace puts
//! this crate in its place (`[patch.crates-io]`).

pub use original::*;

pub mod binlog {
    //! As the original's, with [`EventStreamReader`] and [`events::Event`] replaced.

    pub use original::binlog::*;

    pub use crate::reader::EventStreamReader;

    pub mod events {
        //! As the original's, with [`Event`] replaced.

        pub use original::binlog::events::*;

        pub use crate::event::Event;
    }
}

mod event;
mod reader;
