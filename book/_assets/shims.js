/* Loaded before everything else (priority 100). Five repairs: widgets work in a static page,
   everything can be reached and has a name, and a dark page prints dark on white. */

/* 1. The theme's Font Awesome replaces every <i> that appears later by an <svg>; ipywidgets still holds
      the <i> of its Play buttons and throws. Icons that are in the page from the start are unaffected. */
window.FontAwesomeConfig = { observeMutations: false };

/* 2. ipywidgets typesets labels through MathJax 2's queue. Hand that work to MathJax 3, if the page has it.
      The property is on window.MathJax, which holds the configuration first and the library later, and the
      library keeps what it does not know. */
(function () {
  function typeset(element) {
    /* Before MathJax has loaded, window.MathJax is only its configuration: try again later. */
    var tries = 0;
    (function attempt() {
      var mathjax = window.MathJax;
      if (mathjax && mathjax.startup && mathjax.startup.promise) {
        mathjax.startup.promise.then(function () {
          if (mathjax.typesetPromise && element) mathjax.typesetPromise([element]).catch(function () {});
        });
      } else if (mathjax && tries++ < 100) setTimeout(attempt, 100);
    })();
  }
  var hub = {
    Queue: function () {
      Array.prototype.forEach.call(arguments, function (job) {
        if (Array.isArray(job) && job[0] === "Typeset") typeset(job[2]);
        else if (typeof job === "function") job();
      });
    },
    Config: function () {},
    Configured: function () {},
  };
  var held = window.MathJax;
  Object.defineProperty(window, "MathJax", {
    configurable: true,
    get: function () { return held; },
    set: function (value) {
      held = value;
      if (held && !held.Hub) held.Hub = hub;
    },
  });
  if (held && !held.Hub) held.Hub = hub;
})();

/* 3. What theme and widgets leave without a name gets one: pictures inside widgets, sliders, the arrows
      that unfold a chapter. A button's name holds the text that it shows. */
document.addEventListener("DOMContentLoaded", function () {
  function all(selector, action) { document.querySelectorAll(selector).forEach(action); }
  all(".search-button-field", function (button) {
    button.setAttribute("aria-label", button.textContent.trim().replace(/\s+/g, " "));
  });
  all(".bd-sidenav summary", function (arrow) {
    var chapter = arrow.closest("li").querySelector("a");
    if (chapter) arrow.setAttribute("aria-label", "Pages of " + chapter.textContent.trim());
  });
  new MutationObserver(function () {
    all(".theme-switch-button title", function (title) {
      title.parentElement.setAttribute("aria-hidden", "true");
      title.remove();
    });
    all("img.jupyter-widgets", function (image) {
      if (!image.alt) image.alt = image.title || "A frame of the interactive figure";
    });
    all(".widget-slider .noUi-handle:not([aria-label])", function (handle) {
      var label = handle.closest(".widget-slider").querySelector(".widget-label");
      if (label) handle.setAttribute("aria-label", label.textContent);
    });
  }).observe(document.body, { childList: true, subtree: true });
});

/* 4. What is wider than its column scrolls in its own box, can be reached by keyboard, and shows by a
      shadow that there is more. */
(function () {
  var boxes = "div.math, mjx-container[display], .pst-scrollable-table-container, .cell_output, pre, table, " +
    ".heats, [style*='overflow-x']";
  function mark(root) {
    root.querySelectorAll("mjx-container:not([display])").forEach(function (formula) {
      /* Of what runs within a line, such as a cell's text on a phone, the width counts as 0. */
      var column = formula.parentElement;
      while (column.clientWidth === 0 && column !== document.body) column = column.parentElement;
      var drawn = formula.querySelector("mjx-math");
      formula.classList.toggle("course-wide", drawn && drawn.scrollWidth > column.clientWidth + 1);
    });
    root.querySelectorAll(boxes + ", .course-wide").forEach(function (box) {
      var scrolls = /auto|scroll/.test(getComputedStyle(box).overflowX);
      var wide = scrolls && box.scrollWidth > box.clientWidth + 1;
      if (wide) box.setAttribute("tabindex", "0");
      else if (box.getAttribute("tabindex") === "0") box.removeAttribute("tabindex");
      box.classList.toggle("course-more", wide);
    });
  }
  window.addEventListener("load", function () {
    var article = document.querySelector(".bd-article"), changed = new Set();
    if (!article) return;
    function all() { mark(article); }
    all();
    window.addEventListener("resize", all);
    if (window.MathJax && window.MathJax.startup && window.MathJax.startup.promise)
      window.MathJax.startup.promise.then(all);
    /* What is unfolded, and the next frame of a widget, may be wider than what stood there. */
    article.addEventListener("toggle", function (event) { mark(event.target); }, true);
    new MutationObserver(function (changes) {
      var waiting = changed.size > 0;
      changes.forEach(function (change) {
        var output = change.target.closest(".cell_output");
        if (output) changed.add(output);
      });
      if (!waiting && changed.size) requestAnimationFrame(function () {
        changed.forEach(function (output) { mark(output.parentElement); });
        changed.clear();
      });
    }).observe(article, { childList: true, subtree: true });
  });
})();

/* 5. Paper is white: a page that is dark on the screen is printed in the light theme. */
(function () {
  var root = document.documentElement, theme;
  window.addEventListener("beforeprint", function () {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
  });
  window.addEventListener("afterprint", function () { root.dataset.theme = theme; });
})();
