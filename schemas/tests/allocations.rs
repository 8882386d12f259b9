//! Identifiers of payment documents, right and wrong ones, are read, checked and written without an allocation.

// A counting allocator has no safe form.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::io::Write as _;

use anabranch_schemas::flux::id::{FluxId, SYSTEM};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator; only a number is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may have lost its number already.
        let _counted = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how often work allocates.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const EXAMPLE: &str = "2016060611031103099052400029904";
/// Each breaks another rule: length, a character, bytes that are no text, date, version, region, system, level, side
/// and month.
const WRONG: [&[u8]; 11] = [
    b"",
    b"201606061103110309905240002990",
    b"20160606110311O3099052400029904",
    b"2016060611031103099052400\xff29904",
    b"2016023111031103099052400029904",
    b"2016060621031103099052400029904",
    b"2016060612031103099052400029904",
    b"2016060611032103099052400029904",
    b"2016060611031203099052400029904",
    b"2016060611031103299052400029904",
    b"2016060611031103012052400029904",
];

#[test]
fn identifiers_are_read_checked_and_written_without_an_allocation() {
    let mut buffer = [0_u8; 200];
    let written = allocations(|| {
        let id: FluxId = black_box(EXAMPLE).parse().unwrap();
        let checked = FluxId::of(*id.parts(), SYSTEM).unwrap();
        let next = checked.with_sequence(7).unwrap();
        let _digits = black_box((id.digits(), next.digits_beside((&id, id.digits()))));
        write!(&mut buffer[..], "{id} {next}").unwrap();
    });
    assert_eq!(written, 0);
    assert!(buffer.starts_with(EXAMPLE.as_bytes()));

    for text in WRONG {
        let mut buffer = [0_u8; 200];
        let refused = allocations(|| {
            let defect = FluxId::parse(black_box(text)).unwrap_err();
            write!(&mut buffer[..], "{defect}").unwrap();
        });
        assert_eq!(refused, 0, "{}", String::from_utf8_lossy(&buffer));
    }
    // The allocator counts.
    assert_eq!(allocations(|| drop(black_box(Box::new(1_u64)))), 1);
}
