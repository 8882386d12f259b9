//! Tests of the output and the codes of `flux explain` and `flux place`, and of what `flux show` refuses.

use clap::Parser;

use super::*;

const EXAMPLE: &str = "2016060611031103099052400029904";
const RECHARGE: &str = "2016060611031003005050000029904";
const FAILED_OVER: &str = "2016060611031003105050000029904";

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn ended(words: &[&str]) -> Result<(), Code> {
    let line = Line::try_parse_from([&["flux"], words].concat()).unwrap_or_else(|error| panic!("{error}"));
    let answer = match &line.arguments.command {
        Command::Explain(arguments) => explain(arguments, AtomSettlement::default()),
        Command::Place(arguments) => placement(arguments),
        Command::Next(_) | Command::Sequence(_) | Command::Show(_) | Command::Retention(_) => {
            panic!("they ask servers")
        }
    };
    match answer {
        Ok((_, None)) => Ok(()),
        Ok((_, Some(fault))) | Err(fault) => Err(fault.code()),
    }
}

#[test]
fn an_identifier_is_explained_part_by_part() {
    let id: FluxId = EXAMPLE.parse().unwrap();
    let values = Part::ALL.map(|part| part_view(&id, part).value);
    assert_eq!(values, ["20160606", "1", "1", "031", "1", "03", "0", "99", "05", "24", "00029904"]);
    assert_eq!(part_view(&id, Part::Partition).meaning, "database 0, table 05");
    assert_eq!(part_view(&id, Part::Version).digits, "9");
    let view = odd(&id, None);
    assert!(view.iter().any(|text| text.contains("reserved digits are 24")), "{view:?}");
    let kinds: Vec<_> = rules(&id, None).into_iter().map(|rule| rule.kind).collect();
    assert_eq!(
        kinds,
        [
            "atom",
            "refund-clearing",
            "returned-refund-clearing",
            "chargeback",
            "chargeback-reversal",
            "withdrawal-atom"
        ]
    );
}

#[test]
fn a_right_identifier_ends_well_and_a_wrong_one_by_its_code() {
    assert_eq!(ended(&["explain", EXAMPLE]), Ok(()));
    assert_eq!(ended(&["explain", &EXAMPLE[1..]]), Err(Code::FluxIdMalformed));
    assert_eq!(ended(&["explain", EXAMPLE, "--system", "7"]), Err(Code::FluxIdMalformed));
    assert_eq!(ended(&["explain", EXAMPLE, "--database", "{x}"]), Err(Code::FluxIdMalformed));
    assert_eq!(ended(&["explain", RECHARGE, "--kind", "refund"]), Err(Code::FluxMisplaced));
    let capture = ["explain", RECHARGE, "--kind", "capture", "--parent"];
    assert_eq!(ended(&[&capture[..], &[RECHARGE]].concat()), Ok(()));
    assert_eq!(ended(&[&capture[..], &[FAILED_OVER]].concat()), Err(Code::FluxMisplaced));
    assert_eq!(ended(&[&capture[..], &[EXAMPLE]].concat()), Err(Code::FluxParentUnfit));
    assert_eq!(ended(&["explain", RECHARGE, "--parent", RECHARGE]), Err(Code::FluxIdMalformed));
}

#[test]
fn a_new_document_is_placed_by_its_parent_or_by_its_user() {
    assert_eq!(ended(&["place", "refund", "--parent", RECHARGE]), Ok(()));
    assert_eq!(ended(&["place", "refund"]), Err(Code::FluxParentUnfit));
    assert_eq!(ended(&["place", "refund", "--parent", EXAMPLE]), Err(Code::FluxParentUnfit));
    assert_eq!(ended(&["place", "withdrawal", "--partition", "42"]), Ok(()));
    assert_eq!(
        ended(&["place", "withdrawal", "--partition", "42", "--fail-over"]),
        Err(Code::FluxParentUnfit)
    );
    assert_eq!(ended(&["place", "recharge", "--partition", "42"]), Err(Code::FluxParentUnfit));
    let recharge = ["place", "recharge", "--partition", "42", "--date", "2016-06-06", "--fail-over"];
    assert_eq!(ended(&recharge), Ok(()));
}

#[test]
fn a_defect_is_told_by_digits_found_and_needed() {
    let fault = malformed("identifier", "2".repeat(30).parse::<FluxId>().unwrap_err());
    assert_eq!(fault.to_string(), "[flux-id-malformed] identifier: it has 30 digits; needed: 31");
    let text = format!("{}12{}", &EXAMPLE[..17], &EXAMPLE[19..]);
    let fault = malformed("identifier", text.parse::<FluxId>().unwrap_err());
    assert_eq!(fault.found(), "digits 18 to 19 (month) are 12");
    assert!(fault.needed().unwrap().contains("99 (no month)"));
}

#[test]
fn what_is_printed_names_database_table_and_rule() {
    let names = BothNames { by_month: Names::default(), by_year: Names::default() };
    let mut view = IdentifierView::of(
        &names,
        Strategy::Month,
        Level::Composite,
        Kind::Refund.address_below(&FAILED_OVER.parse().unwrap()).unwrap(),
    );
    view.rules = vec![Kind::Refund.into()];
    let text = view.text();
    for line in
        ["side        fail-over", "month       99", "database    flux_00_0", "table       composite_05_99"]
            .into_iter()
            .chain(["strategy    by month"])
    {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    assert!(text.contains("never fails over by itself"));
}

/// Returns what a command line prints about an identifier or a new document.
fn view_of(words: &[&str]) -> IdentifierView {
    let line = Line::try_parse_from([&["flux"], words].concat()).unwrap_or_else(|error| panic!("{error}"));
    let answer = match &line.arguments.command {
        Command::Explain(arguments) => explain(arguments, AtomSettlement::default()),
        Command::Place(arguments) => placement(arguments),
        _ => panic!("it asks servers"),
    };
    answer.unwrap_or_else(|fault| panic!("{fault}")).0
}

#[test]
fn both_strategies_are_explained_side_by_side_with_their_tables() {
    let new = "2027010511031001000057000000001";
    let since_2027 = ["--cut-over", "2027-01-01"];
    for (id, options, strategy, year, table) in [
        (RECHARGE, &since_2027[..], "month", None, "composite_05_05"),
        (new, &since_2027, "year", Some(7), "composite_05_7_00"),
        (new, &[], "month", None, "composite_05_00"),
        (new, &["--year-version", "1", "--year-digit", "23"], "year", Some(0), "composite_05_0_00"),
    ] {
        let view = view_of(&[&["explain", id], options].concat());
        assert_eq!(
            (view.strategy, view.year, view.table.as_str()),
            (strategy, year, table),
            "{id} {options:?}"
        );
    }
    let view = view_of(&[&["explain", new], &since_2027[..]].concat());
    let reserved = view.parts.iter().find(|part| part.part == "reserved").unwrap();
    assert_eq!(reserved.meaning, "digit 22 is the last digit of its table's year: 7");
    assert!(!view.odd.iter().any(|text| text.contains("reserved")), "{:?}", view.odd);
    assert!(view.text().contains("strategy    by year, whose last digit is 7"), "{}", view.text());

    let wrong_year = ["explain", new, "--kind", "recharge", "--cut-over", "2027-01-01", "--year-digit", "23"];
    assert_eq!(ended(&wrong_year), Err(Code::FluxMisplaced));
    assert_eq!(ended(&wrong_year[..6]), Ok(()));
    assert_eq!(ended(&["explain", new, "--year-atom-table", "atom"]), Err(Code::FluxIdMalformed));
    let of_digit = |place| ["flux", "explain", new, "--cut-over", "2027-01-01", "--year-digit", place];
    for (place, is_known) in [("21", false), ("22", true), ("23", true), ("24", false), ("year", false)] {
        assert_eq!(Line::try_parse_from(of_digit(place)).is_ok(), is_known, "{place}");
    }
}

#[test]
fn the_number_of_tables_that_the_names_reach_is_said() {
    let new = "2027010511031001000057000000001";
    let one_database = ["--database", "flux", "--composite-table", "composite_{month:02}"];
    let of_one_database = [&["explain", RECHARGE], &one_database[..]].concat();
    for (words, tables) in [
        (&["explain", RECHARGE][..], 1_300),
        (&["explain", new, "--cut-over", "2027-01-01"][..], 13_000),
        (&["place", "withdrawal", "--partition", "42"][..], 1_300),
        (&of_one_database[..], 13),
    ] {
        let view = view_of(words);
        assert_eq!(view.tables, Some(tables), "{words:?}");
        assert!(view.text().contains(&format!("tables      {tables} of this level")), "{}", view.text());
    }
}

#[test]
fn a_new_document_is_placed_in_the_year_of_its_kind() {
    let recharge = "2027123011031001011057000000001";
    let below = |kind: &'static str| ["place", kind, "--parent", recharge];
    let by_year = ["--cut-over", "2027-01-01", "--date", "2028-02-01"];
    for (words, table) in [
        (&below("capture"), "composite_05_7_11"),
        (&below("atom"), "atom_05_7_11"),
        (&below("refund"), "composite_05_8_99"),
        (&below("chargeback"), "atom_05_8_99"),
        (&["place", "withdrawal", "--partition", "42"], "composite_42_8_99"),
        (&["place", "recharge", "--partition", "42"], "composite_42_8_01"),
    ] {
        assert_eq!(view_of(&[&words[..], &by_year].concat()).table, table, "{words:?}");
    }
    let without_date = [&below("capture")[..], &by_year[..2]].concat();
    assert_eq!(ended(&without_date), Err(Code::FluxParentUnfit));
}

/// The code of the fault that ends a whole command line before it asks a server; `None` = clap refuses the line.
fn ended_without_a_server(example: &str, words: &[&str]) -> Option<Code> {
    let file = format!("{}/../../deploy/{example}.example.toml", env!("CARGO_MANIFEST_DIR"));
    let line = [&["anabranch", "--config", &file, "flux", "show"][..], words].concat();
    let cli = Cli::try_parse_from(line).ok()?;
    Some(cli.dispatch().expect_err("it is refused")[0].code())
}

#[test]
fn a_question_for_a_document_is_refused_before_any_server_is_asked() {
    assert_eq!(ended_without_a_server("serial-codes", &[RECHARGE]), Some(Code::FluxUnconfigured));
    let ended = |words: &[&str]| ended_without_a_server("flux", words);
    assert_eq!(ended(&[&RECHARGE[1..]]), Some(Code::FluxIdMalformed));
    for further in
        [&["--limit", "0"], &["--limit", "1001"], &["--after", RECHARGE], &["--at-least", "main-a"]]
    {
        let words = [&[RECHARGE, "--relations"][..], further].concat();
        assert_eq!(ended(&words), Some(Code::LookupMalformed), "{further:?}");
    }
    for wrong in [&["--limit", "7"][..], &["--after", "1.7"], &["--relations", "--limit", "x"]] {
        assert_eq!(ended(&[&[RECHARGE][..], wrong].concat()), None, "{wrong:?}");
    }
}

#[test]
fn the_settlement_table_of_atoms_is_named_by_a_setting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flux.toml");
    let example = include_str!("../../../../../deploy/flux.example.toml");
    let text = example.replace("# settlement_atoms = \"99\"\n", "settlement_atoms = \"00\"\n");
    assert_ne!(text, example);
    std::fs::write(&file, text).unwrap();
    let of = |options: &[&str]| {
        let line = [&["anabranch", "flux", "explain", EXAMPLE][..], options].concat();
        let cli = Cli::try_parse_from(line).unwrap_or_else(|error| panic!("{error}"));
        let crate::cli::Command::Flux(Arguments { command: Command::Explain(arguments) }) = &cli.command
        else {
            panic!("another command")
        };
        arguments.names.settlement(&cli).unwrap_or_else(|faults| panic!("{faults:?}"))
    };
    assert_eq!(of(&["--settlement-as-written"]), AtomSettlement::AsWritten);
    assert_eq!(of(&["--config", file.to_str().unwrap()]), AtomSettlement::AsWritten);
    std::fs::write(&file, example).unwrap();
    assert_eq!(of(&["--config", file.to_str().unwrap()]), AtomSettlement::NoMonth);
}
