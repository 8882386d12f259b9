//! GTID texts and sets of both kinds of server, right and damaged ones.

use proptest::prelude::*;

use super::*;

const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

fn mysql(number: u64, tag: &str) -> Gtid {
    let uuid = Uuid::parse(UUID.to_owned()).unwrap().data;
    Gtid::MySql { uuid, tag: tag.to_owned(), number }
}

#[test]
fn transactions_with_an_owner_are_listed() {
    assert_eq!(owned("").count(), 0);
    let [one, two] = [3, 4].map(|first| format!("{first}e11fa47-71ca-11e1-9e33-c80aa9429562"));
    // A value that MySQL 9.7.4 returned.
    let list = format!("{one}:25#17:23#16{one}:tag:5#19:4#18{two}:tag:4#20");
    let expected = [
        format!("{one}:25"),
        format!("{one}:23"),
        format!("{one}:tag:5"),
        format!("{one}:tag:4"),
        format!("{two}:tag:4"),
    ];
    assert_eq!(owned(&list).collect::<Vec<_>>(), expected);
}

#[test]
fn a_mariadb_set_keeps_the_last_of_each_domain() {
    let mut gtids = Gtids::parse(Flavor::MariaDb, "0-1-42, 1-2-7").unwrap();
    gtids.append(Gtid::MariaDb(MariaDbGtid::new(1, 3, 8)));
    gtids.append(Gtid::MariaDb(MariaDbGtid::new(5, 1, 1)));
    assert_eq!(gtids.to_string(), "0-1-42,1-3-8,5-1-1");
}

#[test]
fn a_tagged_set_is_split_by_tag_and_grows_there() {
    let mut gtids = Gtids::parse(Flavor::MySql, &format!("{UUID}:1-9:tag:1,\n{UUID}:11")).unwrap();
    gtids.append(mysql(10, ""));
    gtids.append(mysql(2, "tag"));
    assert_eq!(gtids.to_string(), format!("{UUID}:1-11,{UUID}:tag:1-2"));
    assert_eq!(gtids.sids().unwrap().len(), 2);
    let again = Gtids::parse(Flavor::MySql, &gtids.to_string()).unwrap();
    assert_eq!(again.to_string(), gtids.to_string());
}

#[test]
fn a_set_has_the_groups_up_to_its_end() {
    let set = Gtids::parse(Flavor::MariaDb, "0-1-42,1-2-7").unwrap();
    let mariadb = |domain, sequence| Gtid::MariaDb(MariaDbGtid::new(domain, 3, sequence));
    assert!(set.has(&mariadb(0, 42)) && set.has(&mariadb(1, 1)));
    assert!(!set.has(&mariadb(0, 43)) && !set.has(&mariadb(2, 1)));
    assert_eq!(mariadb(0, 43).to_string(), "0-3-43");
    let set = Gtids::parse(Flavor::MySql, &format!("{UUID}:1-9:11:tag:1-3")).unwrap();
    assert!(set.has(&mysql(9, "")) && set.has(&mysql(11, "")) && set.has(&mysql(3, "tag")));
    assert!(!set.has(&mysql(10, "")) && !set.has(&mysql(4, "tag")) && !set.has(&mysql(1, "other")));
    for (gtid, text) in [(mysql(4, ""), format!("{UUID}:4")), (mysql(4, "tag"), format!("{UUID}:tag:4"))] {
        assert_eq!(gtid.to_string(), text);
        assert!(Gtids::parse(Flavor::MySql, &text).unwrap().has(&gtid));
    }
}

#[test]
fn a_set_holds_what_is_not_beyond_it() {
    let mariadb = |text| Gtids::parse(Flavor::MariaDb, text).unwrap();
    let set = mariadb("0-1-42,1-2-7");
    assert!(["", "0-1-42", "0-3-41,1-2-7"].into_iter().all(|others| set.hold(&mariadb(others))));
    assert!(["0-1-43", "2-1-1", "0-1-1,1-2-8"].into_iter().all(|others| !set.hold(&mariadb(others))));
    let mysql = |text: String| Gtids::parse(Flavor::MySql, &text).unwrap();
    let set = mysql(format!("{UUID}:1-9:11-12:tag:1-3"));
    assert!(
        ["2-9", "1", "11-12:tag:3", "tag:1"].into_iter().all(|o| set.hold(&mysql(format!("{UUID}:{o}"))))
    );
    assert!(["10", "9-11", "tag:4", "other:1"].into_iter().all(|o| !set.hold(&mysql(format!("{UUID}:{o}")))));
    assert!(!set.hold(&mariadb("0-1-1")));
}

/// Parsed text never has such a tag; an event of a later server may.
#[test]
fn a_part_that_cannot_be_asked_for_fails_the_whole_set() {
    let mut gtids = Gtids::parse(Flavor::MySql, &format!("{UUID}:1-9")).unwrap();
    gtids.append(mysql(1, "no tag"));
    assert!(gtids.sids().is_err());
}

#[test]
fn a_deleted_domain_leaves_a_set_and_the_last_one_stays() {
    let mut gtids = Gtids::parse(Flavor::MariaDb, "0-1-42,1-2-7,5-1-1").unwrap();
    gtids.keep_known_domains(|domain| domain != 1);
    assert_eq!(gtids.to_string(), "0-1-42,5-1-1");
    gtids.keep_known_domains(|domain| domain == 1);
    assert_eq!(gtids.to_string(), "0-1-42,5-1-1", "a server that knows none of them was reset");
}

/// A server lists domains in its own order.
#[test]
fn sets_are_equal_in_any_order() {
    let mariadb = |text| Gtids::parse(Flavor::MariaDb, text).unwrap();
    assert!(mariadb("0-1-42,1-2-7").is(&mariadb("1-2-7,0-1-42")));
    assert!(!mariadb("0-1-42,1-2-7").is(&mariadb("1-2-8,0-1-42")));
    assert!(!mariadb("0-1-42,1-2-7").is(&mariadb("0-1-42")));
    let mysql = |text: &str| Gtids::parse(Flavor::MySql, text).unwrap();
    assert!(mysql(&format!("{UUID}:1-9:tag:1")).is(&mysql(&format!("{UUID}:tag:1,{UUID}:1-9"))));
    assert!(!mysql(&format!("{UUID}:1-9")).is(&mysql(&format!("{UUID}:1-10"))));
}

#[test]
fn a_set_is_continued_by_the_next_group_of_the_same_server() {
    let gtids = Gtids::parse(Flavor::MariaDb, "0-1-42,1-2-7").unwrap();
    let next = |domain, server, number| Gtid::MariaDb(MariaDbGtid::new(domain, server, number));
    assert!(gtids.are_continued_by(&next(0, 1, 43)));
    assert!(gtids.are_continued_by(&next(1, 2, 8)));
    for other in [next(0, 1, 44), next(0, 2, 43), next(1, 2, 7), next(5, 1, 1)] {
        assert!(!gtids.are_continued_by(&other), "{other:?}");
    }
    let gtids = Gtids::parse(Flavor::MySql, &format!("{UUID}:1-5:7-9,{UUID}:tag:1-2")).unwrap();
    assert!(gtids.are_continued_by(&mysql(10, "")) && gtids.are_continued_by(&mysql(3, "tag")));
    assert!(!gtids.are_continued_by(&mysql(6, "")) && !gtids.are_continued_by(&mysql(10, "tag")));
    let server = |id: &str| ServerIdentity { flavor: String::new(), id: id.to_owned() };
    assert!(mysql(1, "").is_by(&server(UUID)) && next(0, 3, 1).is_by(&server("3")));
    assert!(!mysql(1, "").is_by(&server("x")) && !next(0, 3, 1).is_by(&server("1")));
}

#[test]
fn a_state_may_name_a_domain_twice() {
    assert_eq!(mariadb_state("1-1-38,1-2-40, 7-1-1"), [(1, 1, 38), (1, 2, 40), (7, 1, 1)]);
    assert_eq!(mariadb_state(""), []);
}

#[test]
fn text_that_is_no_set_is_refused() {
    for text in ["x", "0-1", "0-1-2-3", "0--1", "0-1-99999999999999999999999", "1-1-1,1-1-2"] {
        assert!(Gtids::parse(Flavor::MariaDb, text).is_none(), "{text}");
    }
    for text in ["x", UUID, &format!("{UUID}:"), &format!("{UUID}:0"), &format!("{UUID}:5-4"), "a:1"] {
        assert!(Gtids::parse(Flavor::MySql, text).is_none(), "{text}");
    }
    assert_eq!(Gtids::parse(Flavor::MySql, "").unwrap().to_string(), "");
    assert_eq!(Gtids::parse(Flavor::MariaDb, "").unwrap().to_string(), "");
}

#[test]
fn a_tagged_previous_set_is_read() {
    let mut body = (1u64 << 56 | 2 << 8 | 1).to_le_bytes().to_vec();
    for tag in ["", "tag"] {
        body.extend(Uuid::parse(UUID.to_owned()).unwrap().data);
        body.push((tag.len() as u8) << 1);
        body.extend(tag.as_bytes());
        for number in [1u64, 1, 10] {
            body.extend(number.to_le_bytes());
        }
    }
    let gtids = read_mysql_previous(&body).unwrap();
    assert_eq!(gtids.to_string(), format!("{UUID}:1-9,{UUID}:tag:1-9"));
}

proptest! {
    #[test]
    fn any_bytes_and_text_are_read_or_refused(bytes: Vec<u8>, text in ".{0,60}") {
        let _ = read_mariadb_gtid(1, &bytes);
        let _ = read_mariadb_gtid_list(&bytes);
        let _ = read_mysql_gtid(&bytes);
        let _ = read_mysql_previous(&bytes);
        let _ = Gtids::parse(Flavor::MariaDb, &text);
        let _ = Gtids::parse(Flavor::MySql, &text);
    }
}
