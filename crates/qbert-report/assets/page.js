"use strict";
(function () {
  var root = document.documentElement;
  root.classList.add("script");
  var redraws = [];
  function redrawAll() { redraws.forEach(function (redraw) { redraw(); }); }

  // The reader's choice of theme; a browser that keeps nothing just forgets it.
  var button = document.getElementById("theme");
  var choices = ["system", "light", "dark"];
  var chosen = 0;
  function choose(index) {
    chosen = index;
    if (index) { root.setAttribute("data-theme", choices[index]); } else { root.removeAttribute("data-theme"); }
    button.textContent = "Theme: " + choices[index];
    redrawAll();
  }
  button.hidden = false;
  try { choose(Math.max(0, choices.indexOf(localStorage.getItem("qbert-report-theme")))); } catch (error) { choose(0); }
  button.addEventListener("click", function () {
    choose((chosen + 1) % choices.length);
    try { localStorage.setItem("qbert-report-theme", choices[chosen]); } catch (error) { return; }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

  // Two digits are enough for the ends of the axis.
  function digits(value) {
    if (value === 0) { return "0"; }
    return (value < 0 ? "\u2212" : "") + String(Number(Math.abs(value).toPrecision(2)));
  }

  // The same projection as the still picture: turn round the upright axis, look down at a tilt.
  function surface(box) {
    var canvas = box.querySelector("canvas");
    var side = canvas.width, tall = canvas.height;
    var heights = JSON.parse(box.dataset.heights), own = JSON.parse(box.dataset.own);
    var shared = JSON.parse(box.dataset.shared), middle = JSON.parse(box.dataset.middle);
    var home = { turn: Number(box.dataset.turn), tilt: Number(box.dataset.tilt) };
    var view = { turn: home.turn, tilt: home.tilt, shared: true };
    var rows = heights.length, columns = heights[0].length;
    var inputs = {};
    box.querySelectorAll("input").forEach(function (input) { inputs[input.dataset.what] = input; });

    function draw() {
      var density = window.devicePixelRatio || 1;
      canvas.width = Math.round(side * density);
      canvas.height = Math.round(tall * density);
      var pen = canvas.getContext("2d");
      pen.setTransform(density, 0, 0, density, 0, 0);
      pen.clearRect(0, 0, side, tall);
      var style = getComputedStyle(root);
      var colour = function (name) { return style.getPropertyValue("--" + name).trim(); };
      var steps = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(function (step) { return colour("s" + step); });
      var low = (view.shared ? shared : own)[0], high = (view.shared ? shared : own)[1];
      var turn = view.turn * Math.PI / 180, tilt = view.tilt * Math.PI / 180;
      var sin = Math.sin(turn), cos = Math.cos(turn), down = Math.sin(tilt), up = Math.cos(tilt);
      var scale = side * 0.3;
      function place(x, y, value) {
        var across = x * cos - y * sin, near = x * sin + y * cos;
        var height = high > low ? (value - low) / (high - low) : 0;
        return [side * 0.53 + across * scale, tall * 0.6 + (near * down - (height * 1.15 - 0.15) * up) * scale, near];
      }
      function trace(points) {
        pen.beginPath();
        points.forEach(function (point, index) { if (index) { pen.lineTo(point[0], point[1]); } else { pen.moveTo(point[0], point[1]); } });
      }
      var corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
      trace(corners.map(function (corner) { return place(corner[0], corner[1], low); }));
      pen.closePath();
      pen.strokeStyle = colour("rule");
      pen.lineWidth = 1;
      pen.stroke();

      var placed = heights.map(function (line, row) {
        return line.map(function (value, column) {
          return value === null ? null : place(2 * column / (columns - 1) - 1, 2 * row / (rows - 1) - 1, value);
        });
      });
      var facets = [];
      for (var row = 0; row + 1 < rows; row++) {
        for (var column = 0; column + 1 < columns; column++) {
          var points = [placed[row][column], placed[row][column + 1], placed[row + 1][column + 1], placed[row + 1][column]];
          if (points.indexOf(null) >= 0) { continue; }
          var mean = (heights[row][column] + heights[row][column + 1] + heights[row + 1][column + 1] + heights[row + 1][column]) / 4;
          var share = own[1] > own[0] ? (mean - own[0]) / (own[1] - own[0]) : 0;
          facets.push({ points: points, step: Math.min(8, Math.max(0, Math.floor(share * 9))), depth: points[0][2] + points[1][2] + points[2][2] + points[3][2] });
        }
      }
      facets.sort(function (one, other) { return one.depth - other.depth; });
      var edge = colour("paper");
      facets.forEach(function (facet) {
        trace(facet.points);
        pen.closePath();
        pen.fillStyle = steps[facet.step];
        pen.fill();
        pen.globalAlpha = 0.6;
        pen.lineWidth = 0.5;
        pen.strokeStyle = edge;
        pen.stroke();
        pen.globalAlpha = 1;
      });

      // The upright axis stands at the corner furthest to the left.
      var left = corners.reduce(function (best, corner) {
        return place(corner[0], corner[1], low)[0] < place(best[0], best[1], low)[0] ? corner : best;
      });
      var foot = place(left[0], left[1], low), head = place(left[0], left[1], high);
      pen.lineWidth = 1;
      pen.strokeStyle = colour("rule");
      trace([foot, head]);
      pen.stroke();
      pen.fillStyle = colour("muted");
      pen.font = "11px system-ui, sans-serif";
      pen.textAlign = "right";
      if (up > 0.2) {
        pen.fillText(digits(low), foot[0] - 5, foot[1] + 3);
        pen.fillText(digits(high), head[0] - 5, head[1] + 3);
      }
      pen.font = "12px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.fillText("loss", head[0], head[1] - 10);
      // Names go to the two edges nearest to the reader.
      [["columns", cos >= 0 ? [0, 1] : [0, -1]], ["rows", sin >= 0 ? [1, 0] : [-1, 0]]].forEach(function (pair) {
        var at = place(pair[1][0], pair[1][1], low);
        pen.textAlign = at[0] < side * 0.53 ? "right" : "left";
        var shift = at[0] < side * 0.53 ? -8 : 8;
        var text = box.dataset[pair[0]], width = pen.measureText(text).width;
        var x = at[0] + shift;
        x = pen.textAlign === "right" ? Math.max(x, width + 2) : Math.min(x, side - width - 2);
        pen.fillText(text, x, Math.min(at[1] + 14 + 16 * down, tall - 4));
      });
      if (middle !== null) {
        var model = place(0, 0, middle);
        pen.beginPath();
        pen.arc(model[0], model[1], 4.5, 0, 2 * Math.PI);
        pen.fillStyle = colour("second");
        pen.fill();
        pen.lineWidth = 1.5;
        pen.strokeStyle = edge;
        pen.stroke();
      }
    }

    var waiting = false;
    function later() {
      if (waiting) { return; }
      waiting = true;
      requestAnimationFrame(function () { waiting = false; draw(); });
    }
    function look(turn, tilt) {
      view.turn = ((turn + 180) % 360 + 360) % 360 - 180;
      view.tilt = Math.min(90, Math.max(0, tilt));
      inputs.turn.value = view.turn;
      inputs.tilt.value = view.tilt;
      later();
    }
    inputs.turn.addEventListener("input", function () { look(Number(inputs.turn.value), view.tilt); });
    inputs.tilt.addEventListener("input", function () { look(view.turn, Number(inputs.tilt.value)); });
    inputs.shared.addEventListener("change", function () { view.shared = inputs.shared.checked; later(); });
    var from = null;
    canvas.addEventListener("pointerdown", function (event) {
      from = { x: event.clientX, y: event.clientY, turn: view.turn, tilt: view.tilt };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", function (event) {
      if (from) { look(from.turn - (event.clientX - from.x) * 0.6, from.tilt + (event.clientY - from.y) * 0.4); }
    });
    ["pointerup", "pointercancel"].forEach(function (name) { canvas.addEventListener(name, function () { from = null; }); });
    canvas.addEventListener("dblclick", function () { look(home.turn, home.tilt); });
    canvas.addEventListener("keydown", function (event) {
      var moves = { ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, 4], ArrowDown: [0, -4] };
      var move = moves[event.key];
      if (event.key === "Home") { look(home.turn, home.tilt); } else if (move) { look(view.turn + move[0], view.tilt + move[1]); } else { return; }
      event.preventDefault();
    });
    redraws.push(later);
    draw();
  }
  document.querySelectorAll(".turnable").forEach(surface);
})();
