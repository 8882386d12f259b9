//! Tests that show nothing about another server, and the reasons. All others run on each server.

use anabranch_tests::TestDatabase;

/// Part of a test's path, and the reason why it is left out.
type LeftOut = (&'static str, &'static str);

const OWN_SERVERS: &str = "it has another server whatever is chosen, and runs in the suite as it is";

const TWINS: &str = "it has no server";

const OF_BOTH: [(&str, LeftOut); 6] = [
    ("conformance", ("mariadb_11::", OWN_SERVERS)),
    ("conformance", ("mysql::", OWN_SERVERS)),
    ("conformance", ("::twin::", TWINS)),
    ("crash", ("versions::", OWN_SERVERS)),
    ("end_to_end", ("mariadb_11::", OWN_SERVERS)),
    ("end_to_end", ("mysql::", OWN_SERVERS)),
];

const OF_MARIADB_11: [(&str, LeftOut); 0] = [];

const OF_MYSQL: [(&str, LeftOut); 2] = [
    (
        "conformance",
        (
            "store::a_connection_lost_at_commit_is_settled_by_loading_progress",
            "only MariaDB has a stage of a backup that holds back COMMIT and nothing before it",
        ),
    ),
    (
        "conformance",
        (
            "rows::a_page_is_a_range_of_one_index_that_has_all_of_it",
            "it fills tables from MariaDB's tables of numbers, and reads plans in MariaDB's words",
        ),
    ),
];

/// The tests of a suite that are left out on a database.
pub fn left_out(database: TestDatabase, suite: &str) -> impl Iterator<Item = LeftOut> {
    let further = match database {
        TestDatabase::MariaDb => &[][..],
        TestDatabase::MariaDb11 => &OF_MARIADB_11,
        TestDatabase::MySql => &OF_MYSQL,
    };
    OF_BOTH.iter().chain(further).filter(move |(of, _)| *of == suite).map(|(_, test)| *test)
}
