//! History that was lost and replaced by a difference: intervals `(from, to]` (Rule D.2-5).

use crate::resource_version::ResourceVersion;

/// The holes of one journal, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holes(Vec<(ResourceVersion, ResourceVersion)>);

impl Holes {
    /// Notes a hole; merged with the one before when they touch.
    pub fn open(&mut self, from: ResourceVersion, to: ResourceVersion) {
        match self.0.last_mut() {
            Some((_, end)) if end.reaches(&from) => *end = to,
            _ => self.0.push((from, to)),
        }
    }

    /// Whether any hole ends after `position`.
    ///
    /// A hole that lies wholly behind a position matters nothing; one that ends after it hides births and deaths
    /// that somebody else may have delivered.
    pub fn any_after(&self, position: &ResourceVersion) -> bool {
        self.0.iter().any(|(_, to)| !position.reaches(to))
    }

    /// Forgets the holes that end at or before `floor`.
    pub fn raise_floor(&mut self, floor: &ResourceVersion) {
        self.0.retain(|(_, to)| !floor.reaches(to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_holes_are_one() {
        let mut holes = Holes::default();
        holes.open(10_u64.into(), 20_u64.into());
        holes.open(20_u64.into(), 25_u64.into());
        holes.open(30_u64.into(), 40_u64.into());
        assert_eq!(holes.0, [(10_u64.into(), 25_u64.into()), (30_u64.into(), 40_u64.into())]);
    }

    #[test]
    fn holes_behind_the_floor_are_forgotten() {
        let mut holes = Holes::default();
        holes.open(10_u64.into(), 20_u64.into());
        assert!(holes.any_after(&19_u64.into()) && !holes.any_after(&20_u64.into()));
        holes.raise_floor(&19_u64.into());
        assert!(holes.any_after(&5_u64.into()));
        holes.raise_floor(&20_u64.into());
        assert!(!holes.any_after(&5_u64.into()));
    }
}
