//! Tests of the output of `plan`, and of its faults for a wrong file.

use super::*;

const SERIAL_CODES: &str = include_str!("../../../../../deploy/plans/serial-codes.toml");
const FLUX: &str = include_str!("../../../../../deploy/plans/flux.toml");

fn read(subject: &str, text: &str) -> Result<Plan, Vec<Fault>> {
    compute(subject, &parse(subject, text)?)
}

fn view(text: &str, is_compared: bool, years: Option<u32>) -> PlanView {
    PlanView::of(&read("plan", text).unwrap_or_else(|faults| panic!("{faults:?}")), is_compared, years)
}

#[test]
fn each_figure_is_printed_with_its_formula_and_beside_each_wrong_one_why() {
    let text = text::of(&view(FLUX, false, None));
    for line in [
        "  flux.recharge_composite_tables: 1,825 tables",
        "= 18,250,000,000 documents ÷ 10,000,000 rows a table",
        "says \"12,000 tables at 100 databases hold a year\": NOT this figure: two digits name 100 pairs",
        "says \"6 times short\": the same figure, rounded: 7,300 / 1,200",
        "note: 240 TB of tables stand on 160 TB of disks",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

#[test]
fn json_has_numbers_and_texts() {
    let value: serde_json::Value =
        serde_json::from_str(&output::json(&view(SERIAL_CODES, true, Some(2)))).unwrap();
    let figures = value["systems"][0]["figures"].as_array().unwrap();
    let years = figures.iter().find(|figure| figure["name"] == "serial_codes.mapping_years").unwrap();
    assert_eq!((years["low"].as_f64(), years["high"].as_f64()), (Some(7.68), Some(15.36)));
    assert_eq!(
        (years["unit"].as_str(), years["claims"][0]["verdict"].as_str()),
        (Some("years"), Some("differs"))
    );
    assert_eq!(value["systems"][0]["stores"][0]["years"][1]["rows"], 2e9);
    assert_eq!(value["compare"].as_array().unwrap().len(), 3);
}

#[test]
fn the_page_holds_the_same_and_escapes_what_the_file_says() {
    let page = page::of(&view(&FLUX.replace("6 times short", "<b>6</b> & more"), false, Some(3)));
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>"));
    for part in [
        "1,825 tables",
        "&lt;b&gt;6&lt;/b&gt; &amp; more",
        "recharges, at the end of each year",
        "class=\"differs\"",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<b>6") && !page.contains("Measured"));
}

#[test]
fn years_are_a_table_of_each_store() {
    let text = text::of(&view(FLUX, false, Some(2)));
    assert!(text.contains("recharges, at the end of each year"), "{text}");
    assert!(text.contains("91,250,000,000"), "{text}");
}

#[test]
fn every_fault_of_a_file_is_told_by_its_field() {
    let text =
        FLUX.replace("databases = 10\n", "databases = -1\n").replace("row_bytes = 2_000", "row_size = 2_000");
    let reported: Vec<String> = read("plan x", &text).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        reported[0],
        "[plan-invalid] plan x, [flux] databases: its value is -1; needed: a whole number from 1 to 10^15"
    );
    assert!(
        reported[1].starts_with("[plan-invalid] plan x, [flux] row_bytes: the field is absent"),
        "{reported:?}"
    );
    assert!(reported[2].starts_with("[plan-invalid] plan x, [flux] row_size: no such field"), "{reported:?}");
    let reported = read("plan x", "[flux]\ndatabases = \n").unwrap_err()[0].to_string();
    assert!(reported.starts_with("[plan-invalid] plan x: line 2 is not TOML"), "{reported}");
}
