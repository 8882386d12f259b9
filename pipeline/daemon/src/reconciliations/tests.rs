//! Tests of the checkpoint of a reconciliation: its continuation, and the faults that it outlives.

use super::checkpoint::written;
use super::*;

const CONFIG: &str = include_str!("../../../../deploy/anabranch.example.toml");

fn layout_of(text: &str) -> String {
    layout(&Config::parse(text).unwrap())
}

fn register(value: String) -> Register {
    Register { value, revision: 7 }
}

#[test]
fn a_window_is_over_unless_the_process_ends() {
    let cancel = CancellationToken::new();
    let window = cancel.child_token();
    let scheduled = EndSignals { cancel: &cancel, window: Some((7, &window)) };
    let by_hand = EndSignals { cancel: &cancel, window: None };
    let of = |until: EndSignals<'_>| (until.any().is_cancelled(), until.is_window_over());
    assert_eq!((of(scheduled), of(by_hand)), ((false, false), (false, false)));
    window.cancel();
    assert_eq!((of(scheduled), of(by_hand)), ((true, true), (false, false)));
    cancel.cancel();
    assert_eq!((of(scheduled), of(by_hand)), ((true, false), (true, false)));
}

#[test]
fn a_reconciliation_by_hand_takes_nothing_from_that_of_the_schedule_or_from_another_by_hand() {
    let config = Config::parse(CONFIG).unwrap();
    let whole = ReconcileOrder::default();
    let of_store = ReconcileOrder { stores: vec!["birthday".to_owned()], ..ReconcileOrder::default() };
    let reported = ReconcileOrder { mode: Some(Mode::Report), ..ReconcileOrder::default() };
    let fast = ReconcileOrder { is_unthrottled: true, ..ReconcileOrder::default() };
    let of = |order: &ReconcileOrder| (order.register(), order.is_whole(&config));
    assert_eq!(of(&whole), (SCHEDULED, true));
    assert_eq!(of(&fast), (BY_HAND, true), "it closes a window, and goes on with no other");
    assert_eq!(of(&of_store), (BY_HAND, false));
    assert_eq!(of(&reported), (BY_HAND, false));

    let cut_off = register(written(&begun(&of_store, "a layout".to_owned())));
    assert!(require_same(&cut_off, &of_store, "a layout").is_ok());
    let refused = require_same(&cut_off, &reported, "a layout").unwrap_err();
    assert!(refused.to_string().contains("reconcile --now --store birthday"), "{refused}");
    assert!(require_same(&cut_off, &reported, "another layout").is_ok(), "nobody can go on with it");
    assert!(require_same(&register(String::new()), &reported, "a layout").is_ok());
}

#[test]
fn a_reconciliation_goes_on_as_the_same_only_and_from_what_is_whole() {
    let order = ReconcileOrder { stores: vec!["birthday".to_owned()], ..ReconcileOrder::default() };
    let state = begun(&order, "a layout".to_owned());
    let goes_on = |value: &str, order: &ReconcileOrder, layout: &str| {
        resumed(&register(value.to_owned()), order, layout).map(|state| state.id)
    };
    let whole = written(&state);
    assert_eq!(goes_on(&whole, &order, "a layout"), Some(state.id.clone()));
    assert_eq!(goes_on(&whole, &order, "another layout"), None);
    for other in [
        ReconcileOrder::default(),
        ReconcileOrder { mode: Some(Mode::Report), ..order.clone() },
        ReconcileOrder { is_gate_open: true, ..order.clone() },
    ] {
        assert_eq!(goes_on(&whole, &other, "a layout"), None, "{other:?}");
    }
    let changed = whole.replace("\"windows\":0", "\"windows\":1");
    assert_ne!(changed, whole);
    for broken in ["", "{", &whole[1..], &whole[..whole.len() - 1], &changed] {
        assert_eq!(goes_on(broken, &order, "a layout"), None, "{broken}");
    }
}

#[test]
fn each_asker_is_named_once_and_a_state_of_before_has_none() {
    let mut state = begun(&ReconcileOrder::default(), "a layout".to_owned());
    for asker in [SCHEDULE, "ann@db-1", SCHEDULE, "ann@db-1", "bob@db-1"] {
        state.add_asker(asker);
    }
    assert_eq!(state.asked_by, [SCHEDULE, "ann@db-1", "bob@db-1"]);
    (0..100).for_each(|number| state.add_asker(&number.to_string()));
    assert_eq!(state.asked_by.len(), 10);
    state.asked_by.clear();
    let text = serde_json::to_string(&state).unwrap().replace("\"asked_by\":[],", "");
    assert!(!text.contains("asked_by"));
    assert!(serde_json::from_str::<State>(&text).unwrap().asked_by.is_empty());
}

#[test]
fn whatever_decides_which_rows_stand_where_makes_another_layout() {
    let present = layout_of(CONFIG);
    assert_eq!(
        present,
        layout_of(&CONFIG.replace("127.0.0.1:3306", "127.0.0.1:3310")),
        "a server that moved"
    );
    for (text, other) in [
        ("birthday = \"birthday\" }", "birthday = \"born\" }"),
        ("\"user_{db:02}.user_{table:03}\"", "\"user_{db:02}.user_{table:04}\""),
        ("name = \"source-b\"\n", "name = \"source-c\"\n"),
        ("name = \"source-b\"\n", "name = \"source-b\"\ngeneration = 1\n"),
        ("layout = \"by_day\"\n", "layout = \"by_user\"\n"),
        ("databases = 4\n", "databases = 5\n"),
    ] {
        let changed = CONFIG.replace(text, other);
        assert_ne!(changed, CONFIG, "{text}");
        assert_ne!(layout_of(&changed), present, "{other}");
    }
}
