//! Tests of plans that are filled with measured figures, without a server.

use anabranch_schemas::capacity::plan::Plan;
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::shard::ShardId;

use super::*;

const FLUX: &str = include_str!("../../../../../../deploy/plans/flux.toml");
const SERIAL_CODES: &str = include_str!("../../../../../../deploy/plans/serial-codes.toml");
const CONFIG: &str = r#"
name = "test"
[log]
url = "tls://u:p@127.0.0.1:1"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
[[entities]]
entity = "flux"
level = "atom"
tables = "flux_00_{db}.atom_{partition:02}_{month:02}"
[[sources]]
name = "main"
url = "mysql://u:p@127.0.0.1:1"
flux = { region = "singapore", side = "main" }
[[sources]]
name = "fail-over"
url = "mysql://u:p@127.0.0.1:2"
flux = { region = "singapore", side = "fail_over" }
[[targets]]
name = "target-a"
url = "mysql://u:p@127.0.0.1:3"
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target-a"]
lanes = 3
"#;

fn config() -> Config {
    Config::parse(CONFIG).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn source(name: &str, tables: &[(&str, &str, u64, u64)], rate: f64) -> MeasuredSource {
    let sizes = tables.iter().map(|(database, table, rows, bytes)| TableSize {
        table: TableIdentity {
            entity: Entity::Flux,
            shard: ShardId::of(name, database, table, 0),
            database: (*database).to_owned().into(),
            table: (*table).to_owned().into(),
        },
        rows: *rows,
        bytes: *bytes,
    });
    let measure = SourceMeasure {
        tables: sizes.collect(),
        inserted_rows: (rate * 10.0).round() as u64,
        seconds: 10.0,
        binlog_bytes_per_second: Some(2_500.0),
    };
    MeasuredSource { name: name.to_owned(), has_one_entity: true, measure }
}

fn file(text: &str) -> Fields {
    toml::from_str(text).unwrap()
}

fn shown(fields: &[FieldView]) -> Vec<String> {
    fields.iter().map(FieldView::text).collect()
}

#[test]
fn a_plan_is_filled_with_what_the_servers_have_and_says_so() {
    let main = [
        ("flux_00_0", "composite_05_00", 600, 900_000),
        ("flux_00_0", "composite_05_99", 100, 100_000),
        ("flux_00_0", "atom_07_00", 200, 300_000),
        ("flux_00_1", "atom_17_00", 100, 200_000),
    ];
    let measured = [
        source("main", &main, 15.9),
        source("fail-over", &[("flux_00_0", "composite_05_00", 0, 16_384)], 0.3),
    ];
    let mut file = file(FLUX);
    let (fields, kept) = fill(&mut file, &config(), &measured);
    assert_eq!(kept, Vec::<String>::new());
    let by_statistics = "by the statistics of the sources";
    assert_eq!(
        shown(&fields),
        [
            "[flux] sources = 2 (file: 3), configured: sources with the entity flux".to_owned(),
            "[flux] targets = 1 (file: 1), configured: projection relations".to_owned(),
            "[flux] lanes = 3 (file: 4), configured: projection relations".to_owned(),
            "[flux] databases = 2 (file: 10), measured: 5 captured tables that exist".to_owned(),
            "[flux] tables_per_database = 2 (file: 10), measured: 5 captured tables that exist".to_owned(),
            format!(
                "[flux] row_bytes = 1,516 (file: 2,000), measured: 1,516,384 bytes of rows and indexes ÷ 1,000 rows, \
                 {by_statistics}"
            ),
            "[flux] recharges_per_day = 259,200 (file: 50,000,000), measured: 16.2 rows inserted a second, of all \
             tables of the servers, ÷ 5.4 documents of a recharge by the file"
                .to_owned(),
        ]
    );
    // The claims of the file are about other figures.
    file.remove("claims");
    let plan = Plan::of(&file).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(plan.figure("flux.pairs").unwrap().figure.amount, Amount::of(4.0));
    assert_eq!(
        ServerView::of(&measured[0]).text(),
        "source main: 4 captured tables, 1,000 rows, 1.5 MB; 15.9 rows inserted a second, 2.5 KB of binlog a second"
    );
}

#[test]
fn a_figure_that_no_server_tells_stays_as_the_file_has_it_and_is_named() {
    let mut plan = file(FLUX);
    let before = plan.clone();
    let idle = source("main", &[("flux_00_0", "composite_05_00", 0, 16_384)], 0.0);
    let (fields, kept) = fill(&mut plan, &config(), &[idle]);
    assert_eq!(fields.len(), 5, "{fields:?}");
    assert_eq!(
        kept,
        [
            "[flux] row_bytes: the figure of the file stands, because the tables are empty, by the statistics of the \
             sources",
            "[flux] recharges_per_day: the figure of the file stands, because no row was inserted meanwhile",
        ]
    );
    let field = |plan: &Fields| match &plan["flux"] {
        Setting::Table(fields) => fields["row_bytes"].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(field(&plan), field(&before));

    let shared = MeasuredSource {
        has_one_entity: false,
        ..source("main", &[("flux_00_0", "composite_05_00", 10, 16_384)], 4.0)
    };
    let (_, kept) = fill(&mut plan, &config(), &[shared]);
    assert!(kept[0].contains("recharges_per_day") && kept[0].contains("source main has several"), "{kept:?}");
    let (fields, kept) = fill(&mut file(SERIAL_CODES), &config(), &[]);
    assert!(fields.is_empty());
    assert_eq!(kept, ["[serial_codes]: no configured source has the entity serial_code"]);
}

#[test]
fn a_field_that_the_file_lacks_is_filled_and_an_odd_one_is_said() {
    let mut plan =
        file(&FLUX.replace("row_bytes = 2_000\n", "").replace("databases = 10\n", "databases = []\n"));
    let tables = [("flux_00_0", "composite_05_00", 10, 16_384)];
    let (fields, _) = fill(&mut plan, &config(), &[source("main", &tables, 1.0)]);
    let shown = shown(&fields);
    assert!(shown.iter().any(|line| line.starts_with("[flux] row_bytes = 1,638 (file: none)")), "{shown:?}");
    assert!(shown.iter().any(|line| line.starts_with("[flux] databases = 1 (file: no number)")), "{shown:?}");
}
