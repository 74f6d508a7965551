use super::*;

const LIMITS: Limits = Limits { kept_ms: 60_000, of_key: 4, all: 8, bytes_of_key: 100, bytes_all: 150 };

/// Nothing that is asked for its number of requests has too many bytes.
fn none(_: &u32) -> usize {
    0
}

fn of(key: u64, id: impl ToString) -> Of {
    (KeyId::from_parts(1, key), id.to_string())
}

fn print(text: &str) -> Print {
    Print::of(&[text.as_bytes()])
}

fn first(once: &Once<u32>, of: &Of) -> First<u32> {
    match once.begin(of, print("a")) {
        Begun::First(first) => first,
        other => panic!("{other:?}"),
    }
}

fn answered(once: &Once<u32>, of: &Of) -> Option<u32> {
    match once.begin(of, print("a")) {
        Begun::Again(again) => again.now(),
        _ => None,
    }
}

#[test]
fn a_repetition_gets_the_answer_and_another_request_does_not() {
    let once = Once::new(LIMITS, none);
    first(&once, &of(1, "k")).answer(7, true);
    assert_eq!(answered(&once, &of(1, "k")), Some(7));
    assert!(matches!(once.begin(&of(1, "k"), print("b")), Begun::Other));
    assert_eq!(answered(&once, &of(2, "k")), None, "keys of others are their own");
    assert_eq!(once.of_key(&of(1, "").0), [7]);
    assert_ne!(Print::of(&[b"ab", b"c"]), Print::of(&[b"a", b"bc"]));
    assert_eq!(Print::from_hex(&print("a").to_hex()), Some(print("a")));
}

#[tokio::test]
async fn those_that_wait_get_a_failure_too_and_it_is_not_kept() {
    let once = Once::new(LIMITS, none);
    let doing = first(&once, &of(1, "k"));
    let Begun::Again(again) = once.begin(&of(1, "k"), print("a")) else { panic!("it is under way") };
    assert_eq!(again.now(), None);
    doing.answer(7, false);
    assert_eq!(again.wait().await, Some(7));
    let doing = first(&once, &of(1, "k"));
    let Begun::Again(again) = once.begin(&of(1, "k"), print("a")) else { panic!("it is under way") };
    drop(doing);
    assert_eq!(again.wait().await, None);
    assert!(lock(&once.table).keys.is_empty());
}

/// As many refusals as a client likes, with as many keys: nothing of it stays, and others are served as before.
#[test]
fn refusals_take_no_room() {
    let once = Once::new(LIMITS, none);
    first(&once, &of(1, "k")).answer(7, true);
    for number in 0..100 {
        first(&once, &of(number % 20 + 2, number)).answer(0, false);
    }
    assert_eq!(lock(&once.table).count, 1);
    assert_eq!(answered(&once, &of(1, "k")), Some(7));
}

#[test]
fn who_has_the_most_loses_the_oldest() {
    let once = Once::new(LIMITS, none);
    first(&once, &of(1, "k")).answer(7, true);
    for number in 0..100 {
        first(&once, &of(2, number)).answer(1, true);
    }
    assert_eq!(lock(&once.table).count, 5, "a key has its share");
    assert_eq!(answered(&once, &of(2, 99)), Some(1));
    assert_eq!(answered(&once, &of(2, 95)), None);
    for number in 0..100 {
        first(&once, &of(number % 3 + 3, number)).answer(1, true);
        assert!(lock(&once.table).count <= LIMITS.all);
    }
    assert_eq!(answered(&once, &of(1, "k")), Some(7), "it has fewest");
}

/// Each answer has as many bytes as it says.
#[test]
fn answers_have_so_many_bytes_and_the_oldest_go() {
    let limits = Limits { of_key: 100, all: 100, ..LIMITS };
    let once: Once<u32> = Once::new(limits, |answer: &u32| usize::try_from(*answer).unwrap());
    let held = first(&once, &of(1, "held"));
    first(&once, &of(1, "a")).answer(60, true);
    assert!(first(&once, &of(1, "b")).answer(40, true).is_empty());
    assert_eq!(first(&once, &of(1, "c")).answer(41, true), [of(1, "a")], "a key has its share");
    assert!(held.answer(19, true).is_empty(), "what was under way did not go");
    assert!(first(&once, &of(2, "a")).answer(50, true).is_empty());
    assert_eq!(first(&once, &of(3, "a")).answer(10, true), [of(1, "held")], "of who has the most");
    first(&once, &of(3, "a-refusal")).answer(1000, false);
    once.put(of(4, "a"), now_ms(), print("a"), 40);
    assert_eq!(answered(&once, &of(1, "b")), None);
    assert_eq!(answered(&once, &of(1, "c")), Some(41));
    assert_eq!(lock(&once.table).bytes, 41 + 50 + 10 + 40);
    lock(&once.table).sweep(now_ms() + 2 * LIMITS.kept_ms, LIMITS.kept_ms);
    assert_eq!(lock(&once.table).bytes, 0);
}

#[test]
fn what_is_under_way_goes_last_and_removes_no_later_one() {
    let once = Once::new(LIMITS, none);
    let held = first(&once, &of(1, "held"));
    for number in 0..10 {
        first(&once, &of(1, number)).answer(1, true);
    }
    assert!(matches!(once.begin(&of(1, "held"), print("a")), Begun::Again(_)));
    let more: Vec<_> = (10..14).map(|number| first(&once, &of(1, number))).collect();
    assert!(more.iter().flat_map(|first| &first.gone).any(|gone| gone.1 == "held"), "never a refusal");
    first(&once, &of(1, "held")).answer(2, true);
    held.answer(1, false);
    assert_eq!(answered(&once, &of(1, "held")), Some(2));
}

#[test]
fn what_is_old_is_forgotten() {
    let once = Once::new(LIMITS, none);
    once.put(of(1, "k"), now_ms() - LIMITS.kept_ms - 1, print("a"), 7);
    once.put(of(2, "k"), now_ms(), print("a"), 8);
    assert_eq!((answered(&once, &of(1, "k")), answered(&once, &of(2, "k"))), (None, Some(8)));
    lock(&once.table).sweep(now_ms() + 2 * LIMITS.kept_ms, LIMITS.kept_ms);
    assert_eq!(lock(&once.table).count, 0);
}
