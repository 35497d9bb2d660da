// Draw charts with uPlot. `<stepstream-chart>` creates its chart once and updates it with new data.

import { html } from "../vendor/lit-html/lit-html.js";

/**
 * @typedef {object} ChartSpec
 * @property {any} options   options of uPlot without width and height; functions may use `colour`
 * @property {(number | null | undefined)[][]} data   uPlot's columns; the first is x
 * @property {string} key       a new chart is made when it changes (number and names of the lines)
 * @property {number} [height]  in pixels, without the legend
 */

/** @param {string} name  of a colour of console.css, without `--` */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
/** @param {string} name */
export const faint = (name) => `color-mix(in srgb, ${colour(name)} 18%, transparent)`;
// A share of fewer outcomes is no fall: its point is drawn hollow, and the line does not pass through it.
export const FEW = 20;
/** Names of colours for lines, in their order. */
export const COLOURS = ["eval", "train", "third", "good", "warn", "bad"];

/** @param {object} [more]  options of uPlot's axis */
export const axis = (more = {}) => ({
  stroke: () => colour("soft"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { stroke: () => colour("grid") }, ...more,
});

/** @param {number} low @param {number} high  the whole numbers at which an axis has ticks, at most 13 */
export function wholeTicks(low, high) {
  const step = Math.max(1, Math.ceil((high - low) / 12));
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

class Chart extends HTMLElement {
  /** @type {ChartSpec | null} */
  #spec = null;
  /** @type {any} */
  #chart = null;
  #key = "";
  #resize = new ResizeObserver(() => this.#fit());
  #retheme = () => this.#draw(true);

  /** @param {ChartSpec} spec */
  set spec(spec) {
    this.#spec = spec;
    if (this.isConnected) this.#draw(spec.key !== this.#key);
  }

  connectedCallback() {
    this.#resize.observe(this);
    addEventListener("themed", this.#retheme);
    this.#draw(true);
  }

  disconnectedCallback() {
    this.#resize.disconnect();
    removeEventListener("themed", this.#retheme);
    this.#chart?.destroy();
    this.#chart = null;
  }

  #size() {
    return { width: Math.max(1, this.clientWidth), height: this.#spec?.height ?? 240 };
  }

  #fit() {
    if (this.#chart && this.#chart.width !== this.clientWidth) this.#chart.setSize(this.#size());
  }

  /** @param {boolean} anew */
  #draw(anew) {
    if (!this.#spec) return;
    if (this.#chart && !anew) {
      this.#chart.setData(this.#spec.data);
      return;
    }
    this.#chart?.destroy();
    this.#key = this.#spec.key;
    this.#chart = new uPlot({ ...this.#size(), ...this.#spec.options }, this.#spec.data, this);
  }
}
customElements.define("stepstream-chart", Chart);

/**
 * @param {string} name   id of the chart in tests and links
 * @param {string} text   what the chart shows, for screen readers
 * @param {ChartSpec} spec
 */
export const chart = (name, text, spec) =>
  html`<stepstream-chart class="chart" id=${`chart-${name}`} role="img" aria-label=${text} .spec=${spec}></stepstream-chart>`;
