//! The disk model: one arm, first come first served; seek, rotation and bandwidth by age.
//! Units: nanoseconds, bytes, years before the base model.   Cost: O(1) a request.
//! Source: Forney et al., FAST 2002, section 4.3 and Table 2 (IBM 9LZX, backwards aging); seek curve
//! after Ruemmler and Wilkes, IEEE Computer 1994.   Deviates: the table's rotation is half a turn, so
//! that a full one is twice the value; the seek curve is scaled to the table's average.

use crate::error::{bad, Result};
use crate::types::SplitMix64;

const BANDWIDTH: f64 = 20.0e6;
const SEEK_NS: f64 = 5.30e6;
const ROTATION_NS: f64 = 3.00e6;
const CYLINDERS: f64 = 8420.0;
/// 9.1 GB over its cylinders.
const CYLINDER_BYTES: u64 = 9_100_000_000 / 8420;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Every seek takes the average.
    Average,
    /// By the distance from the cylinder before.
    Distance,
}

#[derive(Debug)]
pub struct Disk {
    years: f64,
    seek: Seek,
    rng: SplitMix64,
    cylinder: Option<u64>,
    free_at_ns: u64,
}

/// a + b sqrt(d) for short and c + e d for long seeks, in units of the average over random pairs.
fn seek_curve(distance: f64) -> f64 {
    // 3.24 + 0.4 sqrt(d) below 383 cylinders, 8.00 + 0.008 d above, of a 1962-cylinder disk,
    // stretched to this disk's cylinders; the mean over uniform pairs is 12.84.
    let d = distance / CYLINDERS * 1962.0;
    let ms = if d < 383.0 {
        3.24 + 0.4 * d.sqrt()
    } else {
        8.0 + 0.008 * d
    };
    ms / 12.836
}

impl Disk {
    pub fn new(years: f64, seed: u64, seek: Seek) -> Result<Self> {
        let mut disk = Self {
            years: 0.0,
            seek,
            rng: SplitMix64::new(seed),
            cylinder: None,
            free_at_ns: 0,
        };
        disk.set_years(years)?;
        Ok(disk)
    }

    pub fn years(&self) -> f64 {
        self.years
    }

    pub fn set_years(&mut self, years: f64) -> Result<()> {
        if !(0.0..=100.0).contains(&years) {
            return bad("years", format!("{years} is not from 0 to 100"));
        }
        self.years = years;
        Ok(())
    }

    pub fn bandwidth(&self) -> f64 {
        BANDWIDTH / 1.4f64.powf(self.years)
    }

    pub fn seek_ns(&self) -> f64 {
        SEEK_NS / 0.9f64.powf(self.years)
    }

    /// Half of a turn.
    pub fn rotation_ns(&self) -> f64 {
        ROTATION_NS / 0.9f64.powf(self.years)
    }

    /// Time of one request at byte `address`; on the cylinder of the one before, only its transfer.
    pub fn service(&mut self, address: u64, size: u64) -> u64 {
        let cylinder = address / CYLINDER_BYTES;
        let mut total = size as f64 / self.bandwidth() * 1e9;
        let before = self
            .cylinder
            .replace((address + size.saturating_sub(1)) / CYLINDER_BYTES);
        if before != Some(cylinder) {
            let distance = before.map_or(CYLINDERS / 3.0, |at| {
                (at % CYLINDERS as u64).abs_diff(cylinder % CYLINDERS as u64) as f64
            });
            total += match self.seek {
                Seek::Average => self.seek_ns(),
                Seek::Distance => self.seek_ns() * seek_curve(distance),
            };
            total += 2.0 * self.rotation_ns() * self.rng.next_f64();
        }
        total as u64
    }

    /// The request arrives now and waits for those before it: (start, end).
    pub fn submit(&mut self, now_ns: u64, address: u64, size: u64) -> (u64, u64) {
        let start = now_ns.max(self.free_at_ns);
        let end = start + self.service(address, size);
        self.free_at_ns = end;
        (start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_paper() {
        let table = [
            (0.0, 20.0, 5.30, 3.00),
            (5.0, 3.72, 8.98, 5.07),
            (10.0, 0.69, 15.2, 8.59),
        ];
        for (years, bandwidth, seek, rotation) in table {
            let disk = Disk::new(years, 0, Seek::Average).unwrap();
            assert!((disk.bandwidth() / 1e6 / bandwidth - 1.0).abs() < 0.005);
            assert!((disk.seek_ns() / 1e6 / seek - 1.0).abs() < 0.005);
            assert!((disk.rotation_ns() / 1e6 / rotation - 1.0).abs() < 0.005);
        }
    }

    #[test]
    fn the_seek_curve_averages_to_the_table() {
        let mut rng = SplitMix64::new(3);
        let draws = 200_000;
        let sum: f64 = (0..draws)
            .map(|_| seek_curve(((rng.next_f64() - rng.next_f64()) * CYLINDERS).abs()))
            .sum();
        assert!(
            (sum / f64::from(draws) - 1.0).abs() < 0.01,
            "{}",
            sum / f64::from(draws)
        );
    }

    #[test]
    fn first_come_first_served() {
        let mut disk = Disk::new(10.0, 1, Seek::Average).unwrap();
        let (start, end) = disk.submit(100, 0, 65536);
        assert_eq!(start, 100);
        assert_eq!(disk.submit(200, 50 << 20, 4096).0, end);
    }
}
