//! All of PyO3: the core's types as Python sees them (_core.pyi), each behind one short lock.
#![allow(unsafe_code)] // the buffer protocol; each block says why it is sound

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyAssertionError, PyBufferError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::cache::{CacheConfig, PolicyName};
use crate::device;
use crate::error::{CoreError, Result};
use crate::pages::{self, Pages, Want, REQUEST_MAX_BYTES};
use crate::partition::Tickets;
use crate::repartition::{Preset, Trend, Wait, WaitBalanceConfig};
use crate::types::Frame;

impl From<CoreError> for PyErr {
    fn from(error: CoreError) -> Self {
        PyValueError::new_err(error.to_string())
    }
}

fn choice<T: Copy>(name: &'static str, value: &str, known: &[(&str, T)]) -> Result<T> {
    known
        .iter()
        .find(|(text, _)| *text == value)
        .map(|(_, found)| *found)
        .ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(text, _)| *text).collect();
            CoreError::Parameter(
                name,
                format!("unknown value '{value}' (known: {})", names.join(" ")),
            )
        })
}

const PRESETS: [(&str, Preset); 3] = [
    ("default", Preset::Default),
    ("paper", Preset::Paper),
    ("scaled", Preset::Scaled),
];
const REPARTITIONS: [(&str, bool); 2] = [("wait-balance", true), ("none", false)];

/// Physical memory in bytes.
fn physical_bytes() -> usize {
    // SAFETY: sysconf only reads its argument.
    let (pages, size) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    usize::try_from(pages).unwrap_or(0) * usize::try_from(size).unwrap_or(0)
}

struct Balance<'a> {
    repartition: &'a str,
    preset: &'a str,
    wait: Option<&'a str>,
    threshold: Option<f64>,
    window: u64,
    increment: f64,
    trend: &'a str,
    max_epoch_ns: u64,
    min_sample: u64,
}

impl Balance<'_> {
    fn config(&self, partitions: usize) -> Result<WaitBalanceConfig> {
        let preset = choice("preset", self.preset, &PRESETS)?;
        let wait = match self.wait {
            Some(wait) => choice(
                "wait",
                wait,
                &[("busy", Wait::Busy), ("response", Wait::Response)],
            )?,
            None => preset.wait(),
        };
        let threshold = self
            .threshold
            .unwrap_or_else(|| preset.threshold(partitions));
        if !threshold.is_finite() || threshold < 1.0 {
            return crate::error::bad("threshold", format!("{threshold} is not at least 1"));
        }
        if self.window == 0 {
            return crate::error::bad("window", "must be at least 1");
        }
        if !(self.increment > 0.0 && self.increment <= 1.0) {
            return crate::error::bad("increment", format!("{} is not in (0, 1]", self.increment));
        }
        Ok(WaitBalanceConfig {
            wait,
            threshold,
            window: self.window,
            increment: self.increment,
            trend: choice(
                "trend",
                self.trend,
                &[("relative", Trend::Relative), ("absolute", Trend::Absolute)],
            )?,
            max_epoch_ns: self.max_epoch_ns,
            min_sample: self.min_sample,
            active: choice("repartition", self.repartition, &REPARTITIONS)?,
        })
    }
}

/// The region of page frames, through the buffer protocol; keeps it mapped while exported.
#[pyclass(frozen, module = "storagecache._core")]
struct Arena {
    pages: Arc<Mutex<Pages>>,
}

#[pymethods]
impl Arena {
    unsafe fn __getbuffer__(
        slf: PyRef<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (address, length) = {
            let pages = lock(&slf.pages)?;
            (pages.store().address(), pages.store().reserved())
        };
        let length = isize::try_from(length).map_err(|_| PyBufferError::new_err("too large"))?;
        // SAFETY: `view` is the interpreter's; the mapping lives as long as `slf`, which the view
        // holds a reference to. Writers keep to frames that a fetch has pinned (pages.rs).
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                address.cast::<c_void>(),
                length,
                0,
                flags,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::take(slf.py()).unwrap_or_else(|| PyBufferError::new_err("no buffer")))
        }
    }
}

fn lock(pages: &Mutex<Pages>) -> PyResult<MutexGuard<'_, Pages>> {
    pages
        .lock()
        .map_err(|_| PyRuntimeError::new_err("the cache's lock is poisoned"))
}

#[pyclass(frozen, module = "storagecache._core")]
struct Run {
    inner: pages::Run,
    buffers: Vec<(usize, usize)>,
    owner: Arc<Mutex<Pages>>,
    ended: AtomicBool,
}

impl Run {
    /// Ends the run, once and by its own cache only: else it would drop pins of others.
    fn end(&self, cache: &Arc<Mutex<Pages>>) -> PyResult<&pages::Run> {
        if !Arc::ptr_eq(&self.owner, cache) {
            return Err(PyValueError::new_err("run: of another cache"));
        }
        if self.ended.swap(true, Ordering::Relaxed) {
            return Err(PyValueError::new_err("run: has ended already"));
        }
        Ok(&self.inner)
    }
}

#[pymethods]
impl Run {
    #[getter]
    fn offset(&self) -> u64 {
        self.inner.offset
    }

    #[getter]
    fn size(&self) -> usize {
        self.inner.size
    }

    #[getter]
    fn frames(&self) -> Vec<Frame> {
        self.inner.frames.clone()
    }

    #[getter]
    fn buffers(&self) -> Vec<(usize, usize)> {
        self.buffers.clone()
    }
}

#[pyclass(frozen, module = "storagecache._core")]
struct Plan {
    #[pyo3(get)]
    covered: usize,
    #[pyo3(get)]
    frames: Vec<Frame>,
    #[pyo3(get)]
    runs: Py<PyList>,
    #[pyo3(get)]
    joined: Vec<Frame>,
}

fn runs_to_list<'py>(
    py: Python<'py>,
    owner: &Arc<Mutex<Pages>>,
    pages: &Pages,
    runs: Vec<pages::Run>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for inner in runs {
        let buffers = pages.buffers(&inner);
        let run = Run {
            inner,
            buffers,
            owner: Arc::clone(owner),
            ended: AtomicBool::new(false),
        };
        list.append(Py::new(py, run)?)?;
    }
    Ok(list)
}

#[pyclass(frozen, module = "storagecache._core")]
struct Cache {
    pages: Arc<Mutex<Pages>>,
    page_bytes: usize,
    repartition: Mutex<String>,
    trend: String,
    max_epoch_ns: u64,
    min_sample: u64,
}

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (*, policy, memory_bytes, page_bytes, backends, seed = 0,
        repartition = "wait-balance", preset = "default", wait = None, threshold = None,
        window = 1000, increment = 0.002, trend = "relative", tickets = "reciprocal",
        clock_insert_bit = false, max_epoch_ns = 60_000_000_000, min_sample = 50, shares = None,
        service_ns = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword-only parameters of the contract"
    )]
    fn new(
        policy: String,
        memory_bytes: usize,
        page_bytes: usize,
        backends: usize,
        seed: u64,
        repartition: &str,
        preset: &str,
        wait: Option<&str>,
        threshold: Option<f64>,
        window: u64,
        increment: f64,
        trend: &str,
        tickets: &str,
        clock_insert_bit: bool,
        max_epoch_ns: u64,
        min_sample: u64,
        shares: Option<Vec<f64>>,
        service_ns: Option<Vec<u64>>,
    ) -> PyResult<Self> {
        let balance = Balance {
            repartition,
            preset,
            wait,
            threshold,
            window,
            increment,
            trend,
            max_epoch_ns,
            min_sample,
        };
        let weights =
            shares.or_else(|| service_ns.map(|all| all.iter().map(|one| *one as f64).collect()));
        let config = CacheConfig {
            policy,
            capacity: 0,
            partitions: backends,
            seed,
            tickets: choice(
                "tickets",
                tickets,
                &[
                    ("reciprocal", Tickets::Reciprocal),
                    ("complement", Tickets::Complement),
                ],
            )?,
            clock_insert_bit,
            weights,
            balance: balance.config(backends)?,
        };
        let reserve = physical_bytes().min(memory_bytes.saturating_mul(16));
        let pages = Pages::new(config, memory_bytes, page_bytes, reserve)?;
        Ok(Self {
            pages: Arc::new(Mutex::new(pages)),
            page_bytes,
            repartition: Mutex::new(repartition.to_string()),
            trend: trend.to_string(),
            max_epoch_ns,
            min_sample,
        })
    }

    #[getter]
    fn arena(&self) -> Arena {
        Arena {
            pages: Arc::clone(&self.pages),
        }
    }

    #[getter]
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn open_object(&self, backend: usize) -> PyResult<u32> {
        Ok(lock(&self.pages)?.open_object(backend)?)
    }

    fn close_object(&self, slot: u32) -> PyResult<()> {
        Ok(lock(&self.pages)?.close_object(slot)?)
    }

    fn read(&self, slot: u32, offset: u64, size: usize) -> PyResult<isize> {
        if size > REQUEST_MAX_BYTES {
            return Err(PyValueError::new_err("size: more than 1 MiB"));
        }
        let found = lock(&self.pages)?.read(slot, offset, size);
        Ok(found
            .and_then(|start| isize::try_from(start).ok())
            .unwrap_or(-1))
    }

    #[pyo3(signature = (slot, offset, size, object_size, read_max_bytes, *, whole_pages = true,
        count = true))]
    #[expect(clippy::too_many_arguments, reason = "the contract of _core.pyi")]
    fn begin_read(
        &self,
        py: Python<'_>,
        slot: u32,
        offset: u64,
        size: usize,
        object_size: u64,
        read_max_bytes: usize,
        whole_pages: bool,
        count: bool,
    ) -> PyResult<Plan> {
        let mut pages = lock(&self.pages)?;
        let want = Want {
            slot,
            offset,
            size,
            object_size,
            read_max_bytes,
            whole_pages,
        };
        let plan = pages.begin_read(want, count)?;
        Ok(Plan {
            covered: plan.covered,
            frames: plan.frames,
            runs: runs_to_list(py, &self.pages, &pages, plan.runs)?.unbind(),
            joined: plan.joined,
        })
    }

    fn begin_prefetch<'py>(
        &self,
        py: Python<'py>,
        slot: u32,
        offset: u64,
        size: usize,
        object_size: u64,
        read_max_bytes: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut pages = lock(&self.pages)?;
        let want = Want {
            slot,
            offset,
            size,
            object_size,
            read_max_bytes,
            whole_pages: true,
        };
        let runs = pages.begin_prefetch(want)?;
        runs_to_list(py, &self.pages, &pages, runs)
    }

    fn gather(&self, frames: Vec<Frame>, offset: u64, size: usize) -> PyResult<isize> {
        let mut pages = lock(&self.pages)?;
        check_frames(&pages, &frames)?;
        let found = pages.gather(&frames, offset, size);
        Ok(found
            .and_then(|start| isize::try_from(start).ok())
            .unwrap_or(-1))
    }

    fn unpin(&self, frames: Vec<Frame>) -> PyResult<()> {
        let mut pages = lock(&self.pages)?;
        check_frames(&pages, &frames)?;
        if frames.iter().any(|frame| pages.cache().pins(*frame) == 0) {
            return Err(PyValueError::new_err("frames: not pinned"));
        }
        pages.unpin(&frames);
        Ok(())
    }

    fn complete(&self, run: &Run, bytes_read: usize, cost_ns: u64) -> PyResult<bool> {
        let mut pages = lock(&self.pages)?;
        Ok(pages.complete(run.end(&self.pages)?, bytes_read, cost_ns))
    }

    fn fail(&self, run: &Run) -> PyResult<()> {
        let mut pages = lock(&self.pages)?;
        pages.fail(run.end(&self.pages)?);
        Ok(())
    }

    #[pyo3(signature = (backend, response_ns, busy_ns, now_ns, *, demand))]
    fn observe(
        &self,
        backend: usize,
        response_ns: u64,
        busy_ns: u64,
        now_ns: u64,
        demand: bool,
    ) -> PyResult<bool> {
        Ok(lock(&self.pages)?.observe(backend, response_ns, busy_ns, now_ns, demand)?)
    }

    fn write(&self, py: Python<'_>, slot: u32, offset: u64, data: PyBuffer<u8>) -> PyResult<()> {
        if !data.is_c_contiguous() {
            return Err(PyBufferError::new_err("data: not contiguous"));
        }
        let bytes = data.to_vec(py)?;
        Ok(lock(&self.pages)?.write(slot, offset, &bytes)?)
    }

    fn truncate(&self, slot: u32, size: u64) -> PyResult<()> {
        Ok(lock(&self.pages)?.truncate(slot, size)?)
    }

    #[pyo3(signature = (slot, first_page = 0, last_page = None))]
    fn invalidate(&self, slot: u32, first_page: u64, last_page: Option<u64>) -> PyResult<usize> {
        let clamp = |page: u64| u32::try_from(page).unwrap_or(u32::MAX);
        let last = last_page.map_or(u32::MAX, clamp);
        Ok(lock(&self.pages)?.invalidate(slot, clamp(first_page), last)?)
    }

    fn mark_dirty(&self, slot: u32, offset: u64, size: usize) -> PyResult<()> {
        Ok(lock(&self.pages)?.mark(slot, offset, size, true)?)
    }

    fn mark_clean(&self, slot: u32, offset: u64, size: usize) -> PyResult<()> {
        Ok(lock(&self.pages)?.mark(slot, offset, size, false)?)
    }

    fn set_policy(&self, policy: &str) -> PyResult<()> {
        Ok(lock(&self.pages)?.set_policy(policy)?)
    }

    #[pyo3(signature = (repartition, *, preset = "default", wait = None, threshold = None,
        window = 1000, increment = 0.002))]
    fn set_repartition(
        &self,
        repartition: &str,
        preset: &str,
        wait: Option<&str>,
        threshold: Option<f64>,
        window: u64,
        increment: f64,
    ) -> PyResult<()> {
        let balance = Balance {
            repartition,
            preset,
            wait,
            threshold,
            window,
            increment,
            trend: &self.trend,
            max_epoch_ns: self.max_epoch_ns,
            min_sample: self.min_sample,
        };
        let mut pages = lock(&self.pages)?;
        let config = balance.config(pages.cache().partitions())?;
        pages.set_balance(config);
        if let Ok(mut name) = self.repartition.lock() {
            *name = repartition.to_string();
        }
        Ok(())
    }

    /// `now_ns` is taken so that a decision log can name the time.
    fn end_epoch(&self, now_ns: u64) -> PyResult<bool> {
        let _ = now_ns;
        Ok(lock(&self.pages)?.end_epoch())
    }

    fn set_targets(&self, pages: Vec<usize>) -> PyResult<()> {
        Ok(lock(&self.pages)?.set_targets(pages)?)
    }

    fn resize(&self, memory_bytes: usize) -> PyResult<()> {
        Ok(lock(&self.pages)?.resize(memory_bytes)?)
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let pages = lock(&self.pages)?;
        let cache = pages.cache();
        let result = PyDict::new(py);
        result.set_item("policy", cache.policy())?;
        let repartition = self
            .repartition
            .lock()
            .map(|name| name.clone())
            .unwrap_or_default();
        result.set_item("repartition", repartition)?;
        result.set_item("capacity_pages", cache.capacity())?;
        result.set_item("page_bytes", self.page_bytes)?;
        result.set_item("capacity_bytes", pages.memory_bytes())?;
        result.set_item("used_bytes", pages.used_bytes())?;
        result.set_item("pinned_pages", cache.pinned())?;
        result.set_item("filling_pages", pages.filling())?;
        result.set_item("orphan_pages", cache.orphans())?;
        result.set_item("dirty_bytes", pages.store().dirty_bytes())?;
        result.set_item("objects", pages.open_objects())?;
        result.set_item("epochs", cache.balance().epochs())?;
        result.set_item("seed", cache.seed())?;
        let partitions = PyList::empty(py);
        for index in 0..cache.partitions() {
            let part = PyDict::new(py);
            let (counters, waits) = (cache.counters(index), pages.waits(index));
            part.set_item("pages", cache.sizes().pages[index])?;
            part.set_item("target_pages", cache.sizes().targets[index])?;
            part.set_item("state", cache.balance().state(index).name())?;
            part.set_item("hits", counters.hits)?;
            part.set_item("misses", counters.misses)?;
            part.set_item("evictions", counters.evictions)?;
            part.set_item("relative_wait", cache.balance().relative_wait(index))?;
            part.set_item("demand_requests", waits.demand_requests)?;
            part.set_item("response_ns", waits.response_ns)?;
            part.set_item("busy_ns", waits.busy_ns)?;
            partitions.append(part)?;
        }
        result.set_item("partitions", partitions)?;
        Ok(result)
    }

    fn check_invariants(&self) -> PyResult<()> {
        lock(&self.pages)?
            .check_invariants()
            .map_err(PyAssertionError::new_err)
    }

    #[pyo3(signature = (slot, page, cost_ns = 1))]
    fn access(&self, slot: u32, page: u32, cost_ns: u64) -> PyResult<bool> {
        Ok(lock(&self.pages)?.access(slot, page, cost_ns)?)
    }

    fn resident_pages(&self) -> PyResult<Vec<(u32, u32)>> {
        let pages = lock(&self.pages)?;
        let found = pages.cache().resident_pages();
        Ok(found.map(|(_, page)| (page.slot(), page.page())).collect())
    }
}

fn check_frames(pages: &Pages, frames: &[Frame]) -> PyResult<()> {
    let known = pages.cache().frames();
    if frames.iter().any(|frame| *frame as usize >= known) {
        return Err(PyValueError::new_err("frames: out of range"));
    }
    Ok(())
}

#[pyclass(module = "storagecache._core")]
struct Disk {
    inner: device::Disk,
}

#[pymethods]
impl Disk {
    #[new]
    #[pyo3(signature = (*, years = 0.0, seed = 0, seek = "average"))]
    fn new(years: f64, seed: u64, seek: &str) -> PyResult<Self> {
        let seek = choice(
            "seek",
            seek,
            &[
                ("average", device::Seek::Average),
                ("distance", device::Seek::Distance),
            ],
        )?;
        Ok(Self {
            inner: device::Disk::new(years, seed, seek)?,
        })
    }

    #[getter]
    fn years(&self) -> f64 {
        self.inner.years()
    }

    #[setter]
    fn set_years(&mut self, years: f64) -> PyResult<()> {
        Ok(self.inner.set_years(years)?)
    }

    #[getter]
    fn bandwidth_bytes_per_s(&self) -> f64 {
        self.inner.bandwidth()
    }

    #[getter]
    fn seek_ns(&self) -> u64 {
        self.inner.seek_ns() as u64
    }

    #[getter]
    fn rotation_ns(&self) -> u64 {
        self.inner.rotation_ns() as u64
    }

    fn service(&mut self, address: u64, size: u64) -> u64 {
        self.inner.service(address, size)
    }

    fn submit(&mut self, now_ns: u64, address: u64, size: u64) -> (u64, u64) {
        self.inner.submit(now_ns, address, size)
    }
}

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Cache>()?;
    module.add_class::<Plan>()?;
    module.add_class::<Run>()?;
    module.add_class::<Disk>()?;
    module.add(
        "POLICIES",
        pyo3::types::PyTuple::new(module.py(), PolicyName::all())?,
    )?;
    module.add("RELEASE_BUILD", !cfg!(debug_assertions))?;
    Ok(())
}
