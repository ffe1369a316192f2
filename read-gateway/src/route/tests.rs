use ledger::Tier::{Hot as OnHot, Released, Settled};

use super::*;

const ANY: Wanted = Wanted::Any;
const HOT: Source = Source::Hot;
const COLD: Source = Source::Cold;

fn at(tier: Tier, wanted: Wanted, shape: Shape) -> Situation<'static> {
    Situation { tier, wanted, shape, proven: None, misses: &[], changed: false }
}

#[test]
fn first_choice() {
    use Shape::{Point, Scan};
    use Step::{Read, Refuse};
    use Wanted::Only;
    let table = [
        (OnHot, ANY, Scan, Read(HOT)),
        (OnHot, ANY, Point, Read(HOT)),
        (OnHot, Only(HOT), Scan, Read(HOT)),
        (OnHot, Only(COLD), Scan, Refuse(Refusal::NotSettled)),
        (OnHot, Only(COLD), Point, Refuse(Refusal::NotSettled)),
        (Settled, ANY, Scan, Read(COLD)),
        (Settled, ANY, Point, Read(HOT)),
        (Settled, Only(HOT), Scan, Read(HOT)),
        (Settled, Only(COLD), Point, Read(COLD)),
        (Released, ANY, Scan, Read(COLD)),
        (Released, ANY, Point, Read(COLD)),
        (Released, Only(COLD), Scan, Read(COLD)),
        (Released, Only(HOT), Scan, Refuse(Refusal::Released)),
    ];
    for (tier, wanted, shape, expected) in table {
        assert_eq!(route(at(tier, wanted, shape)), expected, "{tier:?} {wanted:?} {shape:?}");
    }
}

#[test]
fn after_misses() {
    use Shape::{Point, Scan};
    use Step::{GiveUp, Read, Refuse};
    use Wanted::Only;
    // Tier now, wanted, shape, misses so far, metadata changed.
    type Case<'a> = (Tier, Wanted, Shape, &'a [Source], bool, Step);
    let table: &[Case<'_>] = &[
        (Settled, ANY, Scan, &[COLD], false, Read(HOT)),
        (Settled, ANY, Point, &[HOT], false, Read(COLD)),
        (Settled, ANY, Scan, &[COLD, HOT], false, Read(COLD)),
        (Settled, ANY, Scan, &[COLD, HOT, COLD], true, GiveUp),
        // Released while it was read from bookies.
        (Released, ANY, Scan, &[HOT], true, Read(COLD)),
        // Rehydrated while it was read from the object.
        (OnHot, ANY, Scan, &[COLD], true, Read(HOT)),
        // Nothing else to ask.
        (OnHot, ANY, Scan, &[HOT], false, GiveUp),
        (Released, ANY, Scan, &[COLD], false, GiveUp),
        // New members: the same tier may do now.
        (OnHot, ANY, Scan, &[HOT], true, Read(HOT)),
        (Settled, Only(HOT), Scan, &[HOT], false, GiveUp),
        (Settled, Only(COLD), Scan, &[COLD], false, GiveUp),
        (Released, Only(HOT), Scan, &[HOT], true, Refuse(Refusal::Released)),
    ];
    for &(tier, wanted, shape, misses, changed, expected) in table {
        let situation = Situation { misses, changed, ..at(tier, wanted, shape) };
        assert_eq!(route(situation), expected, "{situation:?}");
    }
}

#[test]
fn the_tier_that_helped_is_kept_to() {
    let helped = Situation { proven: Some(HOT), ..at(Settled, ANY, Shape::Scan) };
    assert_eq!(route(helped), Step::Read(HOT));
    assert_eq!(route(Situation { misses: &[HOT], ..helped }), Step::Read(COLD));
    // It no longer has a copy.
    assert_eq!(route(Situation { tier: Released, ..helped }), Step::Read(COLD));
}

#[test]
fn every_situation_ends() {
    let sources = [HOT, COLD];
    for tier in [OnHot, Settled, Released] {
        for shape in [Shape::Point, Shape::Scan] {
            for wanted in [ANY, Wanted::Only(HOT), Wanted::Only(COLD)] {
                for proven in [None, Some(HOT), Some(COLD)] {
                    let mut misses = Vec::new();
                    while let Step::Read(source) =
                        route(Situation { tier, wanted, shape, proven, misses: &misses, changed: true })
                    {
                        assert!(sources.contains(&source));
                        misses.push(source);
                        assert!(misses.len() <= 3, "at most two retries");
                    }
                }
            }
        }
    }
}
