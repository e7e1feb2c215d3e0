//! The memory store: one reserved region, a scratch area in front, then page frames; a bitmap of
//! valid and of dirty 4 KiB sectors for each frame.
//! Units: bytes; sectors within a frame are numbered from 0.   Cost: O(sectors touched).
//! Invariants: a dirty sector is valid; positions handed out lie in the region.
#![allow(unsafe_code)] // the region is mapped by hand; each block says why it is sound

use std::ptr::NonNull;

use crate::error::{CoreError, Result};
use crate::types::{Frame, SECTOR_BYTES};

#[derive(Debug)]
pub struct MemoryStore {
    base: NonNull<u8>,
    reserved: usize,
    page_bytes: usize,
    scratch: usize,
    words: usize,
    valid: Vec<u64>,
    dirty: Vec<u64>,
}

// SAFETY: the region is owned by this value alone and reached only through `&self` / `&mut self`;
// readers of exported positions copy them under the lock that guards this value or, for frames that
// are pinned, by the protocol of pages.rs.
unsafe impl Send for MemoryStore {}
// SAFETY: as above; `&self` methods only read.
unsafe impl Sync for MemoryStore {}

impl MemoryStore {
    /// Reserve `reserved` bytes of address space, of which nothing is used until it is written.
    pub fn new(reserved: usize, scratch: usize, page_bytes: usize) -> Result<Self> {
        // SAFETY: a fresh anonymous private mapping; no existing memory is touched.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let base = if address == libc::MAP_FAILED {
            None
        } else {
            NonNull::new(address.cast::<u8>())
        };
        let Some(base) = base else {
            let problem = std::io::Error::last_os_error();
            return Err(CoreError::Memory(format!(
                "cannot reserve {reserved} bytes: {problem}"
            )));
        };
        // SAFETY: advice about our mapping. Huge pages make copies cheaper; refusal costs nothing.
        unsafe {
            libc::madvise(address, reserved, libc::MADV_HUGEPAGE);
        }
        let words = (page_bytes / SECTOR_BYTES).div_ceil(64);
        Ok(Self {
            base,
            reserved,
            page_bytes,
            scratch,
            words,
            valid: Vec::new(),
            dirty: Vec::new(),
        })
    }

    pub fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn reserved(&self) -> usize {
        self.reserved
    }

    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub fn scratch(&self) -> usize {
        self.scratch
    }

    /// Frames that the reserved region can hold.
    pub fn frames_max(&self) -> usize {
        (self.reserved - self.scratch) / self.page_bytes
    }

    pub fn grow(&mut self, frames: usize) {
        if frames * self.words > self.valid.len() {
            self.valid.resize(frames * self.words, 0);
            self.dirty.resize(frames * self.words, 0);
        }
    }

    /// Position of a frame's first byte in the region.
    pub fn position(&self, frame: Frame) -> usize {
        self.scratch + frame as usize * self.page_bytes
    }

    /// Give a frame's memory back to the operating system.
    pub fn discard(&mut self, frame: Frame) {
        let start = self.position(frame).min(self.reserved);
        let length = self.page_bytes.min(self.reserved - start);
        // SAFETY: [start, start + length) is clamped to our mapping; it reads as zeros afterwards.
        unsafe {
            libc::madvise(
                self.base.as_ptr().add(start).cast(),
                length,
                libc::MADV_DONTNEED,
            );
        }
    }

    fn bytes(&mut self, start: usize, length: usize) -> &mut [u8] {
        let start = start.min(self.reserved);
        let length = length.min(self.reserved - start);
        // SAFETY: clamped to our mapping; `&mut self` excludes other Rust references. Fetches write
        // to pinned frames that are not valid yet, which nobody reads through this.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(start), length) }
    }

    pub fn write(&mut self, frame: Frame, offset: usize, data: &[u8]) {
        let start = self.position(frame) + offset;
        let target = self.bytes(start, data.len());
        let length = target.len();
        target.copy_from_slice(&data[..length]);
    }

    pub fn zero(&mut self, frame: Frame, offset: usize, length: usize) {
        let start = self.position(frame) + offset;
        self.bytes(start, length).fill(0);
    }

    /// Copy `length` bytes from `position` to `to` in the scratch area.
    pub fn to_scratch(&mut self, position: usize, to: usize, length: usize) {
        if to + length > self.scratch || position + length > self.reserved {
            return;
        }
        let base = self.base.as_ptr();
        // SAFETY: both ranges lie in our mapping, and the scratch area is in front of every frame,
        // so that they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(base.add(position), base.add(to), length) }
    }

    // sectors

    fn span(&self, frame: Frame) -> std::ops::Range<usize> {
        let start = frame as usize * self.words;
        start..start + self.words
    }

    /// Whether all of the sectors [from, to) are valid.
    pub fn is_valid(&self, frame: Frame, from: usize, to: usize) -> bool {
        all_set(&self.valid[self.span(frame)], from, to)
    }

    pub fn any_valid(&self, frame: Frame) -> bool {
        self.valid[self.span(frame)].iter().any(|word| *word != 0)
    }

    pub fn set_valid(&mut self, frame: Frame, from: usize, to: usize) {
        let span = self.span(frame);
        for_words(&mut self.valid[span], from, to, |word, mask| *word |= mask);
    }

    pub fn clear_valid(&mut self, frame: Frame, from: usize, to: usize) {
        let span = self.span(frame);
        for_words(&mut self.valid[span.clone()], from, to, |word, mask| {
            *word &= !mask
        });
        for_words(&mut self.dirty[span], from, to, |word, mask| *word &= !mask);
    }

    pub fn set_dirty(&mut self, frame: Frame, from: usize, to: usize) {
        let span = self.span(frame);
        for_words(&mut self.dirty[span], from, to, |word, mask| *word |= mask);
    }

    pub fn clear_dirty(&mut self, frame: Frame, from: usize, to: usize) {
        let span = self.span(frame);
        for_words(&mut self.dirty[span], from, to, |word, mask| *word &= !mask);
    }

    pub fn is_dirty(&self, frame: Frame) -> bool {
        self.dirty[self.span(frame)].iter().any(|word| *word != 0)
    }

    pub fn dirty_bytes(&self) -> u64 {
        self.dirty
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum::<u64>()
            * SECTOR_BYTES as u64
    }

    /// Nothing of the frame is valid or dirty.
    pub fn clear(&mut self, frame: Frame) {
        let span = self.span(frame);
        self.valid[span.clone()].fill(0);
        self.dirty[span].fill(0);
    }

    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        for (index, (valid, dirty)) in self.valid.iter().zip(&self.dirty).enumerate() {
            if dirty & !valid != 0 {
                return Err(format!(
                    "store: word {index} has dirty sectors that are not valid"
                ));
            }
        }
        Ok(())
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        // SAFETY: our mapping, unmapped once; exports keep this value alive (python.rs).
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.reserved);
        }
    }
}

fn mask(from: usize, to: usize) -> u64 {
    let width = to - from;
    let ones = if width >= 64 {
        u64::MAX
    } else {
        (1 << width) - 1
    };
    ones << from
}

fn for_words(words: &mut [u64], from: usize, to: usize, mut act: impl FnMut(&mut u64, u64)) {
    for (index, word) in words.iter_mut().enumerate() {
        let low = from.max(index * 64);
        let high = to.min(index * 64 + 64);
        if low < high {
            act(word, mask(low - index * 64, high - index * 64));
        }
    }
}

fn all_set(words: &[u64], from: usize, to: usize) -> bool {
    words.iter().enumerate().all(|(index, word)| {
        let low = from.max(index * 64);
        let high = to.min(index * 64 + 64);
        if low >= high {
            return true;
        }
        let wanted = mask(low - index * 64, high - index * 64);
        word & wanted == wanted
    })
}
