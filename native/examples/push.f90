! A simulation in Fortran that pushes its frames: particles that walk at random in a box.
!
!   gfortran -O2 $(himach cache config --fortran) push.f90 $(himach cache config --libs) -o push
!   ./push KEY_FILE FRAMES SERVER
program push
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  use bodhi
  implicit none
  integer, parameter :: n_atoms = 1000
  real(c_float), target :: positions(3, n_atoms) = 0, box(6) = [50, 50, 50, 90, 90, 90]
  character(kind=c_char, len=1024), target :: key_file, server
  character(len=20) :: frames
  type(c_ptr), target :: servers(1)
  type(c_ptr) :: pusher
  type(bodhi_push_options) :: options
  integer(c_int64_t) :: number, n_frames
  integer(c_int) :: status, closed
  real :: steps(3, n_atoms)

  if (command_argument_count() /= 3) then
    write (error_unit, "(a)") "usage: push KEY_FILE FRAMES SERVER"
    stop 2
  end if
  call get_command_argument(1, key_file)
  call get_command_argument(2, frames)
  call get_command_argument(3, server)
  read (frames, *) n_frames
  key_file = trim(key_file) // c_null_char
  server = trim(server) // c_null_char
  servers(1) = c_loc(server)
  options%key_file = c_loc(key_file)
  options%durable = 1

  status = bodhi_push_open(c_loc(servers), 1_c_int, "fortran-example" // c_null_char, c_null_ptr, 0_c_size_t, &
                           options, pusher)
  do number = 0, n_frames - 1
    if (status /= BODHI_OK) exit
    call random_number(steps)
    positions = positions + steps - 0.5
    positions(1, 1) = real(number)
    status = bodhi_push(pusher, bodhi_frame(number=number, time=0.5_c_double * number, n_atoms=n_atoms, &
                                            positions=c_loc(positions), box=c_loc(box)))
  end do
  if (status /= BODHI_OK) then
    write (error_unit, "(a)") bodhi_error()
    error stop
  end if
  closed = bodhi_push_close(pusher)
  if (closed /= BODHI_OK) then
    write (error_unit, "(a)") bodhi_error()
    error stop
  end if
end program push
