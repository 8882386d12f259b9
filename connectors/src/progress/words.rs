//! The words of the column `refresh`: the state of a lane's refresh, and the parts of progress without a column.
//!
//! Stores keep these words there, so none of them needs another column. A version that does not know a word refuses the
//! row, and reads every row that lacks it (docs/decisions/lanes.md, "Progress has one text of words").

use std::str::FromStr;

use anabranch_pipeline::records::{InvalidRefresh, Progress};

/// A word that may precede the state of the refresh.
struct Word {
    /// Precedes the value.
    name: &'static str,
    /// Returns the value as a text without blanks, if the row needs the word.
    value: fn(&Progress) -> Option<String>,
    read: fn(&mut Progress, &str) -> Result<(), InvalidRefresh>,
}

/// The words in their order. Each is followed by a blank if a refresh was ever made.
static WORDS: [Word; 5] = [
    // `beginning:2`: the source began anew.
    Word {
        name: "beginning:",
        value: |progress| (progress.beginning > 0).then(|| progress.beginning.to_string()),
        read: |progress, text| parsed(text).map(|number| progress.beginning = number),
    },
    // `fields:4`: the changes were captured with four fields of the entity at least, not with those of each table.
    Word {
        name: "fields:",
        value: |progress| progress.captured_fields.map(|fields| fields.to_string()),
        read: |progress, text| parsed(text).map(|fields| progress.captured_fields = Some(fields)),
    },
    // `read:7:4096:0-1-50`: an undecided XA branch keeps the resume point before the end of what was read.
    Word {
        name: "read:",
        value: |progress| progress.resume.read_end.as_ref().map(|end| end.to_string()),
        read: |progress, text| parsed(text).map(|end| progress.resume.read_end = Some(end)),
    },
    // `partial:0-1-51`: the position is within a group that is sent in parts, and that has this GTID.
    Word {
        name: "partial:",
        value: |progress| progress.resume.partial.clone(),
        read: |progress, text| parsed(text).map(|gtid| progress.resume.partial = Some(gtid)),
    },
    // `withdrawn:1:7:160=1a2b`: claims of dropped or truncated tables are still to be removed.
    Word {
        name: "withdrawn:",
        value: |progress| (!progress.withdrawals.is_empty()).then(|| progress.withdrawals.to_string()),
        read: |progress, text| parsed(text).map(|withdrawals| progress.withdrawals = withdrawals),
    },
];

fn parsed<T: FromStr>(text: &str) -> Result<T, InvalidRefresh> {
    text.parse().map_err(|_| InvalidRefresh)
}

/// Writes the words and the state of a lane's refresh as text. Without words, it is `None` before the first refresh and
/// empty while no refresh runs.
pub(super) fn write(progress: &Progress) -> Option<String> {
    let words = WORDS.iter().filter_map(|word| Some(format!("{}{}", word.name, (word.value)(progress)?)));
    let refresh = match &progress.refresh {
        Some(refresh) => Some(refresh.to_string()),
        None => progress.was_refreshed.then(String::new),
    };
    let parts: Vec<String> = words.chain(refresh).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Reads into `progress` the parts that [`write`] wrote.
pub(super) fn read(progress: &mut Progress, text: Option<&str>) -> Result<(), InvalidRefresh> {
    let mut text = text;
    for word in &WORDS {
        let Some(rest) = text.and_then(|text| text.strip_prefix(word.name)) else { continue };
        let (value, rest) = rest.split_once(' ').map_or((rest, None), |(value, rest)| (value, Some(rest)));
        (word.read)(progress, value)?;
        text = rest;
    }
    progress.refresh = text.filter(|text| !text.is_empty()).map(str::parse).transpose()?;
    progress.was_refreshed = text.is_some();
    Ok(())
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::records::{Refresh, ScanCursor, TableRefresh};
    use anabranch_schemas::lsn::{Lsn, ReadEnd, ResumePoint};
    use anabranch_schemas::shard::ShardId;

    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_in_any_combination_are_read_back(
            beginning: u64,
            captured_fields in option::of(any::<usize>()),
            read_end in option::of((any::<u32>(), any::<u64>(), "[0-9a-f:,-]{0,40}")),
            partial in option::of("[0-9a-f:-]{1,40}"),
            is_owing: bool,
            was_refreshed: bool,
            is_refreshed: bool,
        ) {
            let read_end =
                read_end.map(|(file_number, position, gtid_set)| ReadEnd { file_number, position, gtid_set });
            let withdrawals = if is_owing { "1:7:160=1a,2b" } else { "" };
            let progress = Progress {
                refresh: is_refreshed.then(Refresh::of_every_table),
                was_refreshed: was_refreshed || is_refreshed,
                captured_fields,
                withdrawals: withdrawals.parse().unwrap_or_default(),
                beginning,
                resume: ResumePoint { read_end, partial, ..ResumePoint::default() },
                ..Progress::default()
            };
            prop_assert_eq!(progress.withdrawals.is_empty(), !is_owing);
            prop_assert_eq!(refresh_of(write(&progress).as_deref()), Ok(progress));
        }
    }

    fn refresh_of(text: Option<&str>) -> Result<Progress, InvalidRefresh> {
        let mut progress = Progress::default();
        read(&mut progress, text).map(|()| progress)
    }

    #[test]
    fn what_a_lane_reads_of_its_tables_is_read_back_and_rows_from_before_there_were_words_mean_the_same() {
        let text = |progress: &Progress| write(progress);
        let plain = Progress::default();
        let through = Progress { was_refreshed: true, ..plain.clone() };
        let under_way = Progress { refresh: Some(Refresh::of_every_table()), ..through.clone() };
        for progress in [plain, through, under_way.clone()] {
            for captured_fields in [None, Some(3), Some(4)] {
                for beginning in [0, 1, 12] {
                    for read_end in [None, Some("7:4096:0-1-50,1-7-2")] {
                        let partial = beginning.eq(&1).then(|| "0-1-51".to_owned());
                        let read_end = read_end.map(|end| end.parse().unwrap());
                        let resume = ResumePoint { read_end, partial, ..ResumePoint::default() };
                        let progress = Progress { captured_fields, beginning, resume, ..progress.clone() };
                        assert_eq!(refresh_of(text(&progress).as_deref()), Ok(progress));
                    }
                }
            }
        }
        let both = Progress { captured_fields: Some(4), beginning: 2, ..under_way };
        assert_eq!(text(&both).as_deref(), Some("beginning:2 fields:4 - - 0"));
        let withdrawals = "1:7:160=1a".parse().unwrap();
        let owes = Progress { withdrawals, ..Progress::default() };
        assert_eq!(text(&owes).as_deref(), Some("withdrawn:1:7:160=1a"));
        assert_eq!(refresh_of(text(&owes).as_deref()), Ok(owes));
        let old = |text| refresh_of(text).map(|progress| (progress.captured_fields, progress.beginning));
        for text in [None, Some(""), Some("- - 0")] {
            assert_eq!(old(text), Ok((None, 0)));
        }
        let damaged = [
            "fields:",
            "fields:x",
            "fields:-1",
            "fields:4 x",
            "fields:4  ",
            "beginning:x",
            "beginning: ",
            "read:7:4",
        ];
        for damaged in damaged {
            assert_eq!(old(Some(damaged)), Err(InvalidRefresh), "{damaged}");
        }
    }

    /// A column of type TEXT has 64 KiB. The numbers are the longest that there are.
    #[test]
    fn a_thousand_waiting_tables_fit_the_progress_row_beside_all_withdrawals_that_it_lists() {
        let shard = |number: u64| ShardId::from_u64((u64::MAX >> 1) - number).unwrap();
        let owed = |number| (shard(number), Lsn::MAX);
        let after = Some(ScanCursor([0xff; 1_500].into()));
        let table =
            TableRefresh { shard: shard(0), first: Lsn::MAX, chunks: u64::MAX, after, is_reread: true };
        let refresh = Refresh {
            rows: u64::MAX,
            rereads: (0..1_000).map(owed).collect(),
            table: Some(table),
            ..Refresh::of_every_table()
        };
        let gtid_set = ["0-4294967295-18446744073709551615"; 60].join(",");
        let read_end = Some(ReadEnd { file_number: u32::MAX, position: u64::MAX, gtid_set });
        let partial = Some("0-4294967295-18446744073709551615".to_owned());
        let without = Progress {
            refresh: Some(refresh),
            was_refreshed: true,
            captured_fields: Some(4),
            beginning: u64::MAX,
            resume: ResumePoint { read_end, partial, ..ResumePoint::default() },
            ..Progress::default()
        };
        let listed = (without.withdrawals_room().min(16 * 1024) - 54) / 17;
        let withdrawn = (0..listed as u64).map(|number| format!("{:x}", shard(number).as_u64()));
        let withdrawn = withdrawn.collect::<Vec<_>>().join(",");
        let withdrawals = format!("{}-{}={withdrawn}", Lsn::MAX, Lsn::MAX).parse().unwrap();
        let owes = Progress { withdrawals, ..without };
        let text = write(&owes).unwrap();
        assert!((55_000..65_536).contains(&text.len()), "{} bytes", text.len());
        assert_eq!(refresh_of(Some(&text)), Ok(owes));
    }
}
