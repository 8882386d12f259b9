//! Codes of devices: regular and odd ones, unique and shared ones.

use anabranch_schemas::serial::luhn_check_digit;
use rand::RngExt;
use rand::rngs::StdRng;

use super::report::WorkloadReport;
use super::transaction::literal;

/// The most devices of one box.
const BOX_DEVICES_MAX: u32 = 200;
/// Characters of the longest box number.
const BOX_CHARACTERS_MAX: usize = 600;
/// Boxes that break code which quotes, trims, folds or measures text badly; most of them get a number as prefix.
const ODD_BOXES: [&str; 12] = [
    "O'Box",
    "\"quoted\"",
    "back\\slash\\",
    "nul\0nul",
    "tail  ",
    "  head",
    "%_*?",
    "箱",
    "😀",
    "e\u{301}",
    "É",
    "{carried}",
];

pub(super) fn column(random: &mut StdRng) -> &'static str {
    ["imei1", "imei2", "meid", "box_no", "item_code"][random.random_range(0..5)]
}

/// Returns the values of the five code columns of a new device.
pub(super) fn of_device(random: &mut StdRng, boxes: &mut Boxes, report: &mut WorkloadReport) -> String {
    let is_phone = random.random_bool(0.7);
    let box_no = boxes.next(random, report);
    let item = item(random, report);
    let codes = if is_phone {
        report.phones += 1;
        let (imei1, imei2) = (imei(random, report), imei(random, report));
        let item = if random.random_bool(0.02) {
            report.codes_of_two_kinds += 1;
            imei1.clone()
        } else {
            item
        };
        [Some(imei1), Some(imei2), Some(meid(random, report)), Some(box_no), Some(item)]
    } else {
        report.other_devices += 1;
        [None, None, None, Some(box_no), random.random_bool(0.8).then_some(item)]
    };
    codes.map(|code| code.map_or("NULL".to_owned(), |code| literal(&code))).join(", ")
}

/// Returns values for agent, warehouse, account and SKU.
pub(super) fn stock(random: &mut StdRng) -> String {
    let [agent, warehouse, sku] = [20, 50, 500].map(|most| random.random_range(0..most));
    let account = random.random_range(1..1_000_000);
    format!("'A{agent}', 'W{warehouse}', {account}, 'SKU-{sku}'")
}

/// Types of phones: so many that a new phone hardly ever has a code whose cache entry was damaged by hand. It would
/// repair that entry (with forty types, in about one reconciliation of twenty-five).
const PHONE_TYPES: u32 = 4_000;

/// Returns 15 digits; the last one is nearly always right.
pub(super) fn imei(random: &mut StdRng, report: &mut WorkloadReport) -> String {
    let (phone_type, number) = (random.random_range(0..PHONE_TYPES), random.random_range(0..1_000_000));
    let mut digits = format!("35{phone_type:06}{number:06}");
    let check = luhn_check_digit(digits.as_bytes());
    let is_wrong = random.random_bool(0.02);
    report.wrong_check_digits += u64::from(is_wrong);
    let check = if is_wrong { b'0' + (check - b'0' + 1) % 10 } else { check };
    digits.push(char::from(check));
    digits
}

/// Returns 14 hexadecimal digits, in either case.
pub(super) fn meid(random: &mut StdRng, report: &mut WorkloadReport) -> String {
    let digits = format!("A00000{:08X}", random.random_range(0..u32::MAX));
    let is_lower = random.random_bool(0.3);
    report.meids_in_lower_case += u64::from(is_lower);
    if is_lower { digits.to_lowercase() } else { digits }
}

/// Returns an item code, mostly of 14 or 15 characters as an IMEI or a MEID has.
pub(super) fn item(random: &mut StdRng, report: &mut WorkloadReport) -> String {
    match random.random_range(0..100) {
        0..30 => {
            report.item_codes_of_15 += 1;
            format!("ITEM-{:010}", random.random_range(0..u32::MAX))
        }
        30..50 => {
            report.item_codes_of_14 += 1;
            format!("{:014}", random.random_range(0..100_000_000_000_000u64))
        }
        50..52 => "鹰".repeat(random.random_range(1..=255)),
        _ => format!("{:x}", random.random_range(0..u64::MAX)),
    }
}

/// Boxes: many hold several devices, which are made one after another.
#[derive(Debug, Default)]
pub(super) struct Boxes {
    open: String,
    left: u32,
}

impl Boxes {
    pub fn next(&mut self, random: &mut StdRng, report: &mut WorkloadReport) -> String {
        if self.left > 0 && random.random_bool(0.8) {
            self.left -= 1;
            report.devices_in_shared_boxes += 1;
            return self.open.clone();
        }
        let code = match random.random_range(0..100) {
            0..60 => format!("{:018}", random.random_range(0..1_000_000_000_000_000_000u64)),
            60..70 => {
                report.odd_boxes += 1;
                let odd = ODD_BOXES[random.random_range(0..ODD_BOXES.len())];
                format!("{}{odd}", random.random_range(0..1_000_000))
            }
            70..73 => {
                report.odd_boxes += 1;
                "9".repeat(random.random_range(60..=BOX_CHARACTERS_MAX))
            }
            _ => any(random),
        };
        if self.left == 0 && random.random_bool(0.1) {
            self.left = random.random_range(1..BOX_DEVICES_MAX);
            self.open.clone_from(&code);
        }
        code
    }
}

/// Returns 1 to 600 letters and digits; half of the texts are short.
fn any(random: &mut StdRng) -> String {
    let most = if random.random_bool(0.5) { 30 } else { BOX_CHARACTERS_MAX };
    let characters = random.random_range(1..=most);
    let letters = "0123456789ABCDEFGHKMNPRSTXYZabcxyz-";
    (0..characters).map(|_| char::from(letters.as_bytes()[random.random_range(0..letters.len())])).collect()
}
